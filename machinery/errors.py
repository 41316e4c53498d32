"""The one tree of errors that crosses doors, adapters and RPC.

Each error carries a Kubernetes `reason`; every door holds one table from reason to its own code and renders the message only
there. A message is written for the person who reads it: what is wrong, and what to do. It never holds a key or a token.

    MusterError
    ├── BadRequestError          the request cannot be understood                 BadRequest
    ├── UnauthorizedError        who you are could not be established             Unauthorized
    │   └── EndedCredentialError a credential that was good, and is no more       Unauthorized
    ├── ForbiddenError           you are known and may not                        Forbidden
    ├── NotFoundError            no such object                                   NotFound
    ├── AlreadyExistsError       the name is taken                                AlreadyExists
    ├── ConflictError            the object changed since you read it             Conflict
    ├── StaleEpochError          a newer owner of the cluster is known            StaleEpoch
    ├── InvalidError             the object breaks a rule, with causes per field  Invalid
    ├── ExpiredError             the revision asked for is compacted              Expired
    ├── TooLargeError            the body is over the limit                       RequestEntityTooLarge
    ├── TooManyRequestsError     come back after `retry_after`                    TooManyRequests
    ├── DeadlineError            not done in time                                 Timeout
    ├── UnavailableError         a part this needs is away for now                ServiceUnavailable
    │   └── NotLeaderError       another replica does this now                    ServiceUnavailable
    ├── MethodNotAllowedError    the resource has no such verb                    MethodNotAllowed
    ├── NotAcceptableError       no answer in the form asked for                  NotAcceptable
    └── UnsupportedMediaTypeError                                                 UnsupportedMediaType
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Cause:
    """One broken rule: Kubernetes' StatusCause. `field` is a path such as `spec.taints[0].effect`."""

    reason: str
    message: str
    field: str


class DenialCause(StrEnum):
    """Why somebody who is known may not, or no longer: finer than an error's reason, for machines, as its first cause."""

    CLUSTER_DENIED = "ClusterDenied"
    CLUSTER_REVOKED = "ClusterRevoked"
    """A bootstrap credential that was made before its cluster was revoked does not bring it back."""
    CLUSTER_DELETED = "ClusterDeleted"
    CLUSTER_REBUILT = "ClusterRebuilt"
    """Another cluster has taken the name over, by an operator's word."""
    CLUSTER_MOVED = "ClusterMoved"
    CERTIFICATE_REVOKED = "CertificateRevoked"
    CERTIFICATE_EXPIRED = "CertificateExpired"
    CREDENTIAL_REVOKED = "CredentialRevoked"
    AUTHORITY_RETIRED = "AuthorityRetired"
    """The CA that signed the certificate is on its way out: its recovery certificate may still do."""

    CERTIFICATE_LOST = "CertificateLost"
    """The hub was restored from a backup that is older than the certificate: its recovery certificate may still do."""

    def because(self, message: str) -> tuple[Cause]:
        """As the causes of an error."""
        return (Cause(self.value, message, ""),)


@dataclass(frozen=True, slots=True)
class ErrorSubject:
    """The object an error is about, as in `Status.details`."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""


class MusterError(Exception):
    """Root of the tree; raised only through its subclasses."""

    reason: ClassVar[str] = "InternalError"

    def __init__(
        self,
        message: str,
        *,
        subject: ErrorSubject | None = None,
        causes: Sequence[Cause] = (),
        retry_after: timedelta | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.subject = subject
        self.causes = tuple(causes)
        self.retry_after = retry_after

    @property
    def verdict(self) -> DenialCause | None:
        """What the first cause says of who asked; None: nothing."""
        said = self.causes[0].reason if self.causes else ""
        return _VERDICTS.get(said)


class BadRequestError(MusterError):
    reason = "BadRequest"


class UnauthorizedError(MusterError):
    reason = "Unauthorized"


class EndedCredentialError(UnauthorizedError):
    """The whole credential was shown, so that its holder may hear what became of it."""


class ForbiddenError(MusterError):
    reason = "Forbidden"


class NotFoundError(MusterError):
    reason = "NotFound"


class AlreadyExistsError(MusterError):
    reason = "AlreadyExists"


class ConflictError(MusterError):
    reason = "Conflict"


class StaleEpochError(MusterError):
    """What an agent says comes with a lower epoch than the hub has heard of. `epoch`: the highest that it knows."""

    reason = "StaleEpoch"

    def __init__(self, message: str, *, epoch: int = 0) -> None:
        super().__init__(message, causes=DenialCause.CLUSTER_MOVED.because(message))
        self.epoch = epoch


class InvalidError(MusterError):
    reason = "Invalid"


class ExpiredError(MusterError):
    reason = "Expired"


class TooLargeError(MusterError):
    reason = "RequestEntityTooLarge"


class TooManyRequestsError(MusterError):
    reason = "TooManyRequests"


class DeadlineError(MusterError):
    reason = "Timeout"


class UnavailableError(MusterError):
    reason = "ServiceUnavailable"


class NotLeaderError(UnavailableError):
    """A write that is the leader's was asked of a replica that does not lead, or no longer."""


class MethodNotAllowedError(MusterError):
    reason = "MethodNotAllowed"


class NotAcceptableError(MusterError):
    reason = "NotAcceptable"


class UnsupportedMediaTypeError(MusterError):
    reason = "UnsupportedMediaType"


_VERDICTS = {verdict.value: verdict for verdict in DenialCause}

BY_REASON: dict[str, type[MusterError]] = {
    error.reason: error
    for error in (
        BadRequestError,
        UnauthorizedError,
        ForbiddenError,
        NotFoundError,
        AlreadyExistsError,
        ConflictError,
        InvalidError,
        ExpiredError,
        TooLargeError,
        TooManyRequestsError,
        DeadlineError,
        UnavailableError,
        MethodNotAllowedError,
        NotAcceptableError,
        UnsupportedMediaTypeError,
    )
}
"""From the reason on the wire back to the class; a reason that is not here is an internal error of the peer."""
