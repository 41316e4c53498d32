"""Errors of the cert agent's steps: a reason for the status and a message."""

from machinery.errors import MusterError

FETCHED_KEY = "FetchedKey"
COULD_NOT_FETCH_KEY = "CouldNotFetchKey"
COULD_NOT_GET_CLUSTER_INFO = "CouldNotGetClusterInfo"


class StepError(Exception):
    """`reason`: of the strategy. `cause`: the error to raise for a retry."""

    def __init__(self, reason: str, cause: MusterError) -> None:
        super().__init__(cause.message)
        self.reason = reason
        self.cause = cause


def said(what: str, error: MusterError) -> MusterError:
    """The error with the failed action before its message."""
    return type(error)(f"{what}: {error.message}")
