"""The tree of errors of domain code, adapters and doors.

Each error has a Kubernetes `reason`. Each door maps the reason to its own code and adds the message. A message states what is
wrong and what to do; it never contains a key or a token.

    MusterError
    ├── BadRequestError          the request cannot be understood                 BadRequest
    ├── UnauthorizedError        the caller's identity is not established         Unauthorized
    │   └── EndedCredentialError the credential was valid and has ended           Unauthorized
    ├── ForbiddenError           the caller is known and not permitted            Forbidden
    ├── NotFoundError            the object does not exist                        NotFound
    ├── AlreadyExistsError       the name is taken                                AlreadyExists
    ├── ConflictError            the object changed since it was read             Conflict
    ├── StaleEpochError          the hub knows a newer owner of the cluster       StaleEpoch
    ├── InvalidError             the object breaks a rule, with causes per field  Invalid
    ├── ExpiredError             the requested revision is compacted              Expired
    ├── TooLargeError            the body is over the limit                       RequestEntityTooLarge
    ├── TooManyRequestsError     retry after `retry_after`                        TooManyRequests
    ├── DeadlineError            not finished in time                             Timeout
    ├── UnavailableError         a dependency is unavailable                      ServiceUnavailable
    │   └── NotLeaderError       another process leads                            ServiceUnavailable
    ├── MethodNotAllowedError    the resource has no such verb                    MethodNotAllowed
    ├── NotAcceptableError       no response in an accepted format                NotAcceptable
    └── UnsupportedMediaTypeError                                                 UnsupportedMediaType
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Cause:
    """One broken rule, as Kubernetes' StatusCause. `field` is a path such as `spec.taints[0].effect`."""

    reason: str
    message: str
    field: str


class DenialCause(StrEnum):
    """Machine-readable detail of an Unauthorized, Forbidden or StaleEpoch error: the `reason` of its first cause."""

    CLUSTER_DENIED = "ClusterDenied"
    CLUSTER_REVOKED = "ClusterRevoked"
    """The bootstrap credential is older than the revocation of its cluster, so it cannot register the cluster again."""
    CLUSTER_DELETED = "ClusterDeleted"
    CLUSTER_REBUILT = "ClusterRebuilt"
    """An operator has assigned the name to another cluster."""
    CLUSTER_MOVED = "ClusterMoved"
    CERTIFICATE_REVOKED = "CertificateRevoked"
    CERTIFICATE_EXPIRED = "CertificateExpired"
    CREDENTIAL_REVOKED = "CredentialRevoked"
    AUTHORITY_RETIRED = "AuthorityRetired"
    """The CA that signed the certificate is being retired; the recovery certificate may still be valid."""

    CERTIFICATE_LOST = "CertificateLost"
    """The hub was restored from a backup that is older than the certificate; the recovery certificate may still be valid."""

    def because(self, message: str) -> tuple[Cause]:
        """Return the argument `causes` for an error with this denial cause."""
        return (Cause(self.value, message, ""),)


@dataclass(frozen=True, slots=True)
class ErrorSubject:
    """The object that an error refers to, as in `Status.details`."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""


class MusterError(Exception):
    """Root of the tree. Only its subclasses are raised."""

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
    def denial_cause(self) -> DenialCause | None:
        """The DenialCause of the first cause; None if there is no cause, or it is not a DenialCause."""
        return _DENIAL_CAUSES.get(self.causes[0].reason) if self.causes else None


class BadRequestError(MusterError):
    reason = "BadRequest"


class UnauthorizedError(MusterError):
    reason = "Unauthorized"


class EndedCredentialError(UnauthorizedError):
    """The caller has proved that it holds the whole credential, so the message may state why the credential has ended."""


class ForbiddenError(MusterError):
    reason = "Forbidden"


class NotFoundError(MusterError):
    reason = "NotFound"


class AlreadyExistsError(MusterError):
    reason = "AlreadyExists"


class ConflictError(MusterError):
    reason = "Conflict"


class StaleEpochError(MusterError):
    """The epoch in an agent's message is lower than the stored epoch. `epoch`: the stored epoch."""

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
    """This process (a replica, or a process of an agent) is not the leader, so it may not make this write."""


class MethodNotAllowedError(MusterError):
    reason = "MethodNotAllowed"


class NotAcceptableError(MusterError):
    reason = "NotAcceptable"


class UnsupportedMediaTypeError(MusterError):
    reason = "UnsupportedMediaType"


_DENIAL_CAUSES = {cause.value: cause for cause in DenialCause}

BY_REASON: dict[str, type[MusterError]] = {
    error.reason: error for error in MusterError.__subclasses__() if error is not StaleEpochError
}
"""Error class by the reason in a response. A reason that is missing here means an internal error of the server."""
CODES: dict[str, int] = {
    "BadRequest": 400,
    "Unauthorized": 401,
    "Forbidden": 403,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "NotAcceptable": 406,
    "AlreadyExists": 409,
    "Conflict": 409,
    "StaleEpoch": 409,
    "Expired": 410,
    "RequestEntityTooLarge": 413,
    "UnsupportedMediaType": 415,
    "Invalid": 422,
    "TooManyRequests": 429,
    "InternalError": 500,
    "ServiceUnavailable": 503,
    "Timeout": 504,
}
"""HTTP code by reason. A response without a valid reason gets the last reason with its code that BY_REASON also contains."""


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def required(field: str, detail: str = "") -> Cause:
    return Cause("FieldValueRequired", f"Required value: {detail}" if detail else "Required value", field)


def invalid_value(field: str, value: Any, detail: str) -> Cause:
    return Cause("FieldValueInvalid", f"Invalid value: {_shown(value)}: {detail}", field)


def invalid_type(field: str, value: Any, detail: str) -> Cause:
    return Cause("FieldValueTypeInvalid", f"Invalid value: {_shown(value)}: {detail}", field)


def not_supported(field: str, value: Any, supported: Iterable[str]) -> Cause:
    choices = ", ".join(_shown(choice) for choice in supported)
    return Cause("FieldValueNotSupported", f"Unsupported value: {_shown(value)}: supported values: {choices}", field)


def forbidden(field: str, detail: str) -> Cause:
    return Cause("FieldValueForbidden", f"Forbidden: {detail}", field)


def too_long(field: str, limit: int) -> Cause:
    return Cause("FieldValueTooLong", f"Too long: may not be more than {limit} bytes", field)


def duplicate(field: str, value: Any) -> Cause:
    return Cause("FieldValueDuplicate", f"Duplicate value: {_shown(value)}", field)


def invalid_object(name: str, kind: str, group: str, causes: Sequence[Cause]) -> InvalidError:
    """Return the error of an object that breaks rules, in the format of Kubernetes' field validation."""
    listed = ", ".join(f"{cause.field}: {cause.message}" for cause in causes)
    listed = listed if len(causes) == 1 else f"[{listed}]"
    subject = ErrorSubject(name=name, group=group, kind=kind)
    return InvalidError(f'{kind}.{group} "{name[:80]}" is invalid: {listed}', subject=subject, causes=causes)
