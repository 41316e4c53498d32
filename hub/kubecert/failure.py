"""Why a look at the cluster ended early: the reason as the status tells it, and the words for a person."""

from machinery.errors import MusterError

FETCHED_KEY = "FetchedKey"
COULD_NOT_FETCH_KEY = "CouldNotFetchKey"
COULD_NOT_GET_CLUSTER_INFO = "CouldNotGetClusterInfo"


class StepError(Exception):
    """`reason` is the strategy's; `cause` what is raised, so that it is tried again."""

    def __init__(self, reason: str, cause: MusterError) -> None:
        super().__init__(cause.message)
        self.reason = reason
        self.cause = cause


def said(what: str, error: MusterError) -> MusterError:
    """The error with what was being done before it."""
    return type(error)(f"{what}: {error.message}")
