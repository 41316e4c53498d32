"""Decisions about CertificateSigningRequests, their removal, and writes through the Kubernetes API (`put`)."""

from base64 import b64decode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from hub.api import certificatesigningrequests as csr_rules
from hub.api.certificatesigningrequests import (
    APPROVED,
    DENIED,
    Requester,
    RequestPhase,
    RequestRetention,
    RequestState,
    checks,
    removed_at,
)
from hub.api.managed_fields import HUB_WRITER
from hub.api.meta import document as doc
from hub.api.meta.change import REQUESTS
from hub.ports import Transaction, Written
from hub.registry.certificatesigningrequests import credential_uses
from hub.registry.generic import objects
from hub.registry.generic.objects import write
from machinery import pki
from machinery.errors import ConflictError, MusterError, TooManyRequestsError
from machinery.identity import CLUSTER_LABEL, ClusterName
from machinery.meta.objects import Document, Key, Query, StoredObject
from machinery.meta.selectors import Operator, Requirement


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, requester: Requester) -> Written:
    """Store a CertificateSigningRequest that `machinery.apiserver.kinds.certificates` has validated. Sets its requester.

    With a bootstrap credential, a caller can request only certificates for agents of permitted clusters. Raises InvalidError,
    ForbiddenError, AlreadyExistsError, ConflictError, TooManyRequestsError.
    """
    if old is None:
        new = csr_rules.with_requester(new, requester)
        pki.parse_request(csr_rules.pem(new))
        if (cluster := _cluster_of_requester(tx, new)) is not None:
            new = csr_rules.labelled(new, cluster)
            check_room(new, of_cluster(tx, cluster))
    return write(tx, REQUESTS, new, old, requester.user)


def _cluster_of_requester(tx: Transaction, document: dict[str, Any]) -> ClusterName | None:
    """Return the cluster of a new agent, an agent or an add-on; None for other requesters. Raises ForbiddenError."""
    if (credential := csr_rules.bootstrap_credential(document)) is not None:
        cluster, agent = checks.claimed_agent(pki.parse_request(csr_rules.pem(document)))
        credential_uses.admit(tx, credential, cluster, agent)
        credential_uses.hold(tx, credential, cluster, agent, doc.name(document))
        return cluster
    serial = csr_rules.requester_serial(document)
    record = tx.certificates.by_serial(serial) if serial is not None else None
    return record.cluster if record is not None else None


def check_room(document: Document, known: Iterable[StoredObject]) -> None:
    """Raise TooManyRequestsError if the requester already has MAX_PENDING undecided requests. `known`: the cluster's requests.

    Requests for add-ons are counted separately, so that they cannot block an agent's renewal and recovery.
    """
    cluster, asked = doc.labels(document)[CLUSTER_LABEL], csr_rules.counted_with(document)
    waiting = (stored.document for stored in known if csr_rules.phase(stored.document) is RequestPhase.PENDING)
    if sum(csr_rules.counted_with(each) == asked for each in waiting) >= csr_rules.MAX_PENDING:
        raise TooManyRequestsError(
            f"{csr_rules.MAX_PENDING} certificate requests of {asked[0]} for cluster {cluster} wait for a decision: approve, "
            "deny or delete some of them",
            retry_after=timedelta(minutes=1),
        )


def remove(tx: Transaction, old: StoredObject, actor: str) -> Written:
    return tx.objects.delete(REQUESTS, old, actor)


def of_cluster(tx: Transaction, cluster: str) -> Sequence[StoredObject]:
    """Return all certificate requests with the label of the cluster."""
    labelled = Requirement(CLUSTER_LABEL, Operator.EQUALS, (cluster,))
    return tx.objects.find(REQUESTS, Query(labels=(labelled,))).items


def find(tx: Transaction, name: str) -> StoredObject:
    """Return the certificate request with this name. Raises NotFoundError."""
    return objects.find(tx, REQUESTS, Key("", name))


def state(tx: Transaction, name: str) -> RequestState:
    """Return the state of the certificate request with this name. Raises NotFoundError."""
    return csr_rules.state(find(tx, name).document)


def decide(tx: Transaction, name: str, *, approve: bool, reason: str, message: str, actor: str) -> Written | StoredObject:
    """Approve or deny a certificate request. A repeated decision writes nothing; the opposite decision raises ConflictError."""
    stored = find(tx, name)
    decision, opposite = (APPROVED, DENIED) if approve else (DENIED, APPROVED)
    present = {entry.get("type") for entry in doc.conditions(stored.document)}
    if decision in present:
        return stored
    if opposite in present:
        raise ConflictError(f'certificate request "{name}" is already {opposite.lower()}: a decision is final')
    decided = csr_rules.with_decision(stored.document, decision, reason, message, tx.now)
    return write(tx, REQUESTS, decided, stored, actor, writer=HUB_WRITER)


REMOVED_AT_ONCE, EXAMINED_AT_ONCE = 25, 500


def due_for_removal(tx: Transaction, ends: RequestRetention, after: Key | None) -> tuple[Sequence[str], Key | None]:
    """Examine a portion of the requests, after this key. Return the names of those that are due, and the key of the last one.

    The key is None after the last portion.
    """
    page = tx.objects.find(REQUESTS, Query(limit=EXAMINED_AT_ONCE, after=after))
    return [stored.key.name for stored in page.items if _is_due(stored, ends, tx.now)], page.after


def expire(tx: Transaction, names: Sequence[str], ends: RequestRetention, actor: str) -> int:
    """Remove each request of `names` that is still due for removal. Returns the number of removed requests."""
    tx.objects.read_ahead(REQUESTS, [Key("", name) for name in names])
    found = [stored for stored in (tx.objects.get(REQUESTS, Key("", name)) for name in names) if stored is not None]
    gone = [stored for stored in found if _is_due(stored, ends, tx.now)]
    for stored in gone:
        remove(tx, stored, actor)
    return len(gone)


def _is_due(stored: StoredObject, ends: RequestRetention, now: datetime) -> bool:
    chain, not_after = doc.mapping(stored.document, "status").get("certificate"), None
    with suppress(ValueError, MusterError):  # an unreadable certificate counts as none
        not_after = pki.end_of(b64decode(str(chain))) if chain else None
    return now >= removed_at(stored.document, ends, not_after)
