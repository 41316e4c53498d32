"""Use cases about CertificateSigningRequests: the one write path of the kind."""

from datetime import timedelta
from typing import Any

from hub.domain.certificate import Lifetimes
from hub.domain.change import StoredObject
from hub.domain.request import Requester, RequestState, Submission
from hub.ports import Issuer, Transaction, Written


def submit(tx: Transaction, submission: Submission) -> str:
    """Stores an agent's CSR after strict checks; returns metadata.name. Same requester and same bytes: the same name."""
    raise NotImplementedError


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, requester: Requester) -> Written:
    """The Kubernetes API's write: spec is immutable once created; the requester's names are filled in at creation."""
    raise NotImplementedError


def remove(tx: Transaction, old: StoredObject, actor: str) -> Written:
    raise NotImplementedError


def state(tx: Transaction, name: str) -> RequestState:
    """Where the request stands. Raises NotFoundError."""
    raise NotImplementedError


def decide(tx: Transaction, name: str, *, approve: bool, reason: str, message: str, actor: str) -> Written | StoredObject:
    """Approves or denies; the same decision again writes nothing, the opposite one raises ConflictError."""
    raise NotImplementedError


def review(tx: Transaction, name: str, globs: tuple[str, ...], actor: str) -> Written | None:
    """Approves what needs no human: renewals by the subject itself, and cluster names that match a rule. Never denies."""
    raise NotImplementedError


def issue(tx: Transaction, name: str, issuer: Issuer, lifetimes: Lifetimes, actor: str) -> Written | StoredObject | None:
    """Signs an approved request: records first, then agent and recovery certificate. None: nothing to sign."""
    raise NotImplementedError


def expire_finished(tx: Transaction, older_than: timedelta, actor: str, limit: int = 500) -> int:
    """Removes requests that were issued, denied or failed longer ago; returns how many."""
    raise NotImplementedError
