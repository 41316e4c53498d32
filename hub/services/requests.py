"""Use cases about CertificateSigningRequests, in one place: from submission to the certificate."""

from hub.services.approving import review
from hub.services.issuance import issue
from hub.services.recovery import recover
from hub.services.request_ends import due, expire
from hub.services.request_objects import decide, find, missing, put, read_ahead, remove, state
from hub.services.submission import submit

__all__ = [
    "decide",
    "due",
    "expire",
    "find",
    "issue",
    "missing",
    "put",
    "read_ahead",
    "recover",
    "remove",
    "review",
    "state",
    "submit",
]
