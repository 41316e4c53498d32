"""Recovery of agents with an expired certificate, readoption by a restored hub, and records about a restore.

Recovery: the recovery certificate proves possession of the previous key. The hub checks all other requirements against its
present state: an agent that was denied, revoked, replaced or deleted in the meantime cannot recover.

Readoption: a restored hub has no record of certificates that it signed between the backup and the restore. If a CA of the hub
signed a recovery certificate, its validity began in this interval, and no revocation list of the restore contains it, then the
certificate gets a record and is accepted for `Recover`. An unknown cluster is created again and waits for acceptance, because
its former acceptance is lost.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from hub.api import restorations as restoration_rules
from hub.api.certificateauthorities.authority import ADMITTED, AuthorityRecord
from hub.api.certificates import BACKDATED, CertificateRecord, Purpose
from hub.api.certificatesigningrequests import RequestPhase, Submission
from hub.api.events import EventRecord
from hub.api.managedclusters import cluster as cluster_rules
from hub.api.managedclusters.cluster import JoinRequest
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS
from hub.api.restorations import Readopts, Restoration
from hub.api.revocations import Reason, recorded_reason
from hub.ports import Transaction
from hub.registry import events, owners, revocations as revocation
from hub.registry.certificatesigningrequests import service as request_objects, submission
from hub.registry.managedclusters import service as clusters
from machinery import pki
from machinery.errors import AlreadyExistsError, DenialCause, ForbiddenError, InvalidError, NotFoundError, UnauthorizedError
from machinery.identity import RECOVERY_USER_PREFIX, AgentId, ClusterName, recovery_subject
from machinery.meta.objects import Key
from machinery.pki import CertificateFacts

ACTOR = "system:hub:recovery"
REASON = "RecoveredByItsKey"
MESSAGE = (
    "The agent has presented the recovery certificate of its previous key, and the uid of its cluster is the recorded one."
)


def recover(tx: Transaction, asked: Submission, *, unattended: bool) -> str:
    """Store or find the agent's certificate request. If `unattended`, approve it unless it `needs_approval`. Returns its name.

    Raises InvalidError, TooManyRequestsError, ForbiddenError (the agent may not return), NotFoundError (the cluster was
    deleted) and AlreadyExistsError (another cluster has the name).
    """
    _check_returning(tx, asked)
    name = submission.submit(tx, asked, is_checked=True)
    decides = unattended and not needs_approval(tx, asked.requester)
    if decides and request_objects.state(tx, name).phase is RequestPhase.PENDING:
        request_objects.decide(tx, name, approve=True, reason=REASON, message=MESSAGE, actor=ACTOR)
    return name


def _check_returning(tx: Transaction, asked: Submission) -> None:
    """Raise ForbiddenError, NotFoundError or AlreadyExistsError unless the holder may recover this agent."""
    holder = asked.requester
    if holder.purpose is not Purpose.RECOVERY or not holder.is_open(tx.now):
        raise ForbiddenError("an agent recovers only with a valid recovery certificate that is not revoked")
    if (holder.cluster, holder.agent) != (asked.cluster, asked.agent) or asked.addon is not None:
        raise ForbiddenError(f'this recovery certificate is for agent "{holder.agent}" of cluster "{holder.cluster}" only')
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", asked.cluster))
    if stored is None:
        raise NotFoundError(f'the ManagedCluster "{asked.cluster}" was deleted: register again with a bootstrap kubeconfig')
    if asked.requester.is_readopted and cluster_rules.awaits_acceptance(stored.document):
        return  # no certificate is issued before acceptance
    if not cluster_rules.is_accepted(stored.document) or doc.is_deleting(stored.document):
        raise ForbiddenError(
            f'cluster "{asked.cluster}" is not accepted: an operator accepts it with `hubctl accept {asked.cluster}`'
        )
    if not cluster_rules.is_same_cluster(stored.document, asked.cluster_uid):
        raise AlreadyExistsError(
            f'the cluster name "{asked.cluster}" belongs to a cluster with another uid: a rebuilt cluster registers again with '
            "a bootstrap kubeconfig, after the ManagedCluster of the old one was deleted"
        )
    newest = owners.own_agent(tx, asked.cluster)
    if newest != asked.agent:
        raise ForbiddenError(f'agent "{newest}" has replaced agent "{asked.agent}" in cluster "{asked.cluster}"')


READOPTION_ACTOR = "system:hub:readoption"
READOPTED = "ReadoptedAfterRestore"
CERTIFICATE_LOST = (
    "this certificate was signed after the backup from which the hub was restored, so the hub has no record of it: "
    "the agent may return with its recovery certificate"
)


@dataclass(frozen=True, slots=True)
class Returning:
    """An agent that presents a recovery `certificate` (PEM or DER) of which the hub has no record."""

    certificate: bytes
    cluster: ClusterName
    agent: AgentId
    cluster_uid: str
    lease_duration: timedelta


def lost_record_error(tx: Transaction, facts: CertificateFacts) -> UnauthorizedError | None:
    """Return the error for a certificate whose record a restore has lost; None for other certificates."""
    if tx.certificates.by_serial(facts.serial) is not None or _covering_restore(tx, facts.not_before) is None:
        return None
    return UnauthorizedError(CERTIFICATE_LOST, causes=DenialCause.CERTIFICATE_LOST.because(CERTIFICATE_LOST))


def readopt(tx: Transaction, returning: Returning) -> None:
    """Add the certificate's record, and the cluster if it is unknown. Raises UnauthorizedError if the agent may not return."""
    facts = pki.parse_certificate(returning.certificate)
    if tx.certificates.by_serial(facts.serial) is not None:
        return  # readopted concurrently, or revoked by a list: the record decides
    signer, restore = _signer(tx, returning.certificate), _covering_restore(tx, facts.not_before)
    if signer is None or restore is None or facts.subject != recovery_subject(returning.cluster, returning.agent):
        raise UnauthorizedError("this certificate is not known to the hub: register again with a bootstrap kubeconfig")
    record = CertificateRecord(
        serial=facts.serial,
        purpose=Purpose.RECOVERY,
        user=f"{RECOVERY_USER_PREFIX}{returning.cluster}:{returning.agent}",
        groups=(),
        not_before=facts.not_before,
        not_after=facts.not_after,
        key_hash=facts.key_hash,
        issued_at=facts.not_before + BACKDATED,
        cluster=returning.cluster,
        agent=returning.agent,
        signed_by=signer.signer,
    )
    tx.certificates.add(record)
    if tx.objects.get(MANAGED_CLUSTERS, Key("", returning.cluster)) is None:
        joining = JoinRequest(returning.cluster, returning.cluster_uid, returning.agent)
        clusters.enter(tx, joining, READOPTION_ACTOR, returning.lease_duration)
    message = (
        f'agent "{returning.agent}" returns: its certificate was signed after the backup of '
        f"{restore.made:%Y-%m-%dT%H:%M:%SZ}, from which the hub was restored"
    )
    about = clusters.find(tx, returning.cluster).document
    events.record(tx, [EventRecord(returning.cluster, about, READOPTED, message)], READOPTION_ACTOR)


def needs_approval(tx: Transaction, holder: CertificateRecord) -> bool:
    """Whether requests of this holder need approval: it was readopted, and the restore was ordered with APPROVAL."""
    found = _covering_restore(tx, holder.not_before) if holder.is_readopted else None
    return found is not None and found.readopts is Readopts.APPROVAL


def _covering_restore(tx: Transaction, moment: datetime) -> Restoration | None:
    """The newest restore that lost records of this instant; None: there is none, or it was ordered without readoption."""
    return restoration_rules.covering(restorations(tx), moment)


def _signer(tx: Transaction, certificate: bytes) -> AuthorityRecord | None:
    admitted = (each for each in tx.authorities.all() if each.phase in ADMITTED and not each.is_given_up)
    return next((each for each in admitted if pki.is_issued_by(certificate, each.certificate)), None)


RESTORE_ACTOR = "system:hub:restore"
REVOKED_BY_LIST = "The hub was restored from a backup, and a newer revocation list contains all certificates of the cluster."


@dataclass(frozen=True, slots=True)
class RestoreOrder:
    """A restore to record. `made`: time of the backup; `lists`: revocation lists (DER or PEM) from before the restore."""

    made: datetime
    readopts: Readopts = Readopts.AUTOMATIC
    lists: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class AppliedList:
    """Result of one revocation list: numbers of newly `revoked` certificates, and of entries without a record (`unknown`)."""

    authority: str
    at: datetime
    number: int
    revoked: int
    unknown: int


@dataclass(frozen=True, slots=True)
class RestoreOutcome:
    """State of the hub after `restored`."""

    agents: int
    """Number of agents with a valid certificate."""
    credentials: int
    """Number of valid bootstrap credentials."""
    lists: tuple[AppliedList, ...]
    spent: tuple[ClusterName, ...]
    """Clusters of which a list revoked a certificate and that have no unrevoked agent certificate. `restored` revokes them."""


def restored(tx: Transaction, order: RestoreOrder) -> RestoreOutcome:
    """Record the restore and apply its lists. Raises InvalidError for a list that no CA of this hub signed."""
    known = restorations(tx)
    kept = (*known, Restoration(order.made, tx.now, order.readopts))[-restoration_rules.KEPT :]
    tx.facts.set(restoration_rules.FACT, msgspec.json.encode([each.as_fact() for each in kept]).decode())
    touched = set[ClusterName]()
    lists = tuple(_take(tx, encoded, touched) for encoded in order.lists)
    records = {name: tx.certificates.of_cluster(name) for name in sorted(touched)}
    spent = tuple(
        name
        for name, held in records.items()
        if not any(each.purpose is Purpose.AGENT and each.revoked_at is None for each in held)
    )
    for name in spent:  # otherwise older bootstrap credentials could register them again
        spec = {"cluster": name, "reason": Reason.UNSPECIFIED.value, "message": REVOKED_BY_LIST}
        revocation.create(tx, f"{name}-restored-{tx.now:%Y%m%d%H%M%S}", spec, RESTORE_ACTOR)
    return RestoreOutcome(
        agents=len(tx.authorities.held(Purpose.AGENT, tx.now)),
        credentials=sum(1 for each in tx.credentials.all() if each.revoked_at is None and each.expires_at > tx.now),
        lists=lists,
        spent=spent,
    )


def restorations(tx: Transaction) -> tuple[Restoration, ...]:
    """Return the recorded restores of the hub, oldest first."""
    text = tx.facts.get(restoration_rules.FACT)
    return restoration_rules.read(msgspec.json.decode(text)) if text else ()


def _take(tx: Transaction, encoded: bytes, touched: set[ClusterName]) -> AppliedList:
    content = pki.parse_list(encoded)
    authority = next((each for each in tx.authorities.all() if pki.is_list_of(encoded, each.certificate)), None)
    if authority is None:
        raise InvalidError("no CA of this hub signed one of the revocation lists: use the lists that this hub has published")
    revoked = unknown = 0
    for entry in content.entries:
        record = tx.certificates.by_serial(entry.serial)
        if record is None:
            # this record authorizes nothing and keeps the certificate on the hub's lists. The certificate's end is unknown, so
            # the record has the end of the CA
            record = CertificateRecord(
                serial=entry.serial,
                purpose=Purpose.SERVING,
                user="",
                groups=(),
                not_before=entry.at,
                not_after=pki.parse_certificate(authority.certificate).not_after,
                key_hash="",
                issued_at=entry.at,
                revoked_at=entry.at,
                revoked_reason=recorded_reason(entry.reason),
                signed_by=authority.signer,
            )
            tx.certificates.add(record)
            unknown += 1
        elif record.revoked_at is None:
            tx.certificates.revoke([entry.serial], tx.now, recorded_reason(entry.reason))
            revoked += 1
            if record.cluster is not None:
                touched.add(record.cluster)
    return AppliedList(authority.signer, content.this_update, content.number, revoked, unknown)
