"""What a bootstrap credential may still do, and its uses: held for one who asks, spent when a certificate is issued.

A credential that is read here is locked until the transaction ends, so that nobody else spends the same use meanwhile.
"""

from dataclasses import replace

from hub.api.bootstrapcredentials import credential as rules
from hub.api.bootstrapcredentials.attestation import Attested
from hub.api.bootstrapcredentials.credential import CredentialRecord, CredentialUse
from hub.api.certificatesigningrequests import request as requests
from hub.api.certificatesigningrequests.request import RequestPhase
from hub.api.managedclusters import cluster as clusters
from hub.api.managedclustersets import clusterset as sets
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, REQUESTS, Key
from hub.ports import Transaction
from hub.registry.certificatesigningrequests import attestation
from hub.registry.certificatesigningrequests import revoked_clusters as revoked
from machinery.errors import ForbiddenError
from machinery.identity import AgentId, ClusterName, CredentialId

UNKNOWN = "this bootstrap credential is not known here: have a new bootstrap kubeconfig made"
GONE = (RequestPhase.DENIED, RequestPhase.FAILED)


def check(tx: Transaction, credential: CredentialId, cluster: ClusterName, agent: AgentId | None = None) -> CredentialRecord:
    """The credential, when it may act for `cluster`. Raises ForbiddenError with what is wrong: expired, used up, another's.

    `agent` None: the cluster alone is known, which may have been let in before.
    """
    record = tx.credentials.by_id(credential)
    if record is None:
        raise ForbiddenError(UNKNOWN)
    rules.check(record, cluster, tx.now)
    revoked.check(tx, cluster, record.created_at)
    _check_set(tx, record, cluster)
    _check_place(tx, record, cluster, agent)
    return record


def admit(
    tx: Transaction,
    credential: CredentialId,
    cluster: ClusterName,
    agent: AgentId | None = None,
    attested: Attested | None = None,
) -> tuple[CredentialRecord, bool]:
    """Lets the name in, which holds a use; the credential, and whether the name is new to it. Raises ForbiddenError.

    `attested`: what the cluster has proven of itself.
    """
    record = check(tx, credential, cluster, agent)
    attestation.bind(tx, record, cluster, attested)
    is_new = not tx.credentials.has_admitted(credential, cluster)
    if is_new:
        tx.credentials.admit(credential, cluster, tx.now)
    return record, is_new


def hold(tx: Transaction, credential: CredentialId, cluster: ClusterName, agent: AgentId, request: str) -> None:
    """Notes that a use is held for this agent's request; a retry holds the same one. What was checked before is not again."""
    known = tx.credentials.use_of(credential, cluster, agent)
    if known is None:
        tx.credentials.keep_use(CredentialUse(credential, cluster, agent, request, tx.now))
    elif known.issued_at is None and known.request != request:
        tx.credentials.keep_use(replace(known, request=request))


def use_for(tx: Transaction, credential: CredentialId, cluster: ClusterName, agent: AgentId) -> CredentialUse:
    """The use of an agent that is to get a certificate. Raises ForbiddenError: none is left for it."""
    record = tx.credentials.by_id(credential)
    if record is None:
        raise ForbiddenError(UNKNOWN)
    known = tx.credentials.use_of(credential, cluster, agent)
    if known is None or known.issued_at is None:
        _check_place(tx, record, cluster, agent)
    return known or CredentialUse(credential, cluster, agent, "", tx.now)


def spend(tx: Transaction, use: CredentialUse) -> None:
    """Counts a use, once, whatever its agent gets later. In the transaction of `use_for`, which has locked the credential."""
    known = tx.credentials.use_of(use.credential, use.cluster, use.agent)
    if known is None or known.issued_at is None:
        tx.credentials.keep_use(use)


def _check_place(tx: Transaction, record: CredentialRecord, cluster: ClusterName, agent: AgentId | None) -> None:
    """Raises ForbiddenError unless this agent has a use, or one is left."""
    if record.uses is None or _has_place(tx, record, cluster, agent):
        return
    if tx.credentials.tally(record.id).taken >= record.uses:
        _give_back(tx, record)
    tally = tx.credentials.tally(record.id)
    if tally.taken - _held_by_name(tx, record, cluster) >= record.uses:
        raise rules.taken(record, tally)


def _has_place(tx: Transaction, record: CredentialRecord, cluster: ClusterName, agent: AgentId | None) -> bool:
    if agent is None:  # an agent of it that was let in may come again, after its ManagedCluster went too; another one may not
        spent = (use for use in tx.credentials.uses(record.id) if use.issued_at is not None)
        return tx.credentials.has_admitted(record.id, cluster) or any(use.cluster == cluster for use in spent)
    use = tx.credentials.use_of(record.id, cluster, agent)
    return use is not None and (use.issued_at is not None or _waits(tx, use))


def _held_by_name(tx: Transaction, record: CredentialRecord, cluster: ClusterName) -> int:
    """1: the name of this very cluster holds a use, and no agent of it does yet."""
    if not tx.credentials.has_admitted(record.id, cluster):
        return 0
    return int(all(use.cluster != cluster for use in tx.credentials.uses(record.id)))


def _give_back(tx: Transaction, record: CredentialRecord) -> None:
    """Frees the uses that are held for requests that will never be issued."""
    for use in tx.credentials.uses(record.id):
        if use.issued_at is None and not _waits(tx, use):
            tx.credentials.drop_use(use)
            tx.credentials.forget_name(use.cluster, record.id)


def _waits(tx: Transaction, use: CredentialUse) -> bool:
    stored = tx.objects.get(REQUESTS, Key("", use.request))
    return stored is not None and requests.phase(stored.document) not in GONE


def is_of_set(tx: Transaction, record: CredentialRecord, cluster: ClusterName) -> bool:
    """Whether the set that the credential is bound to, if any, lets it act for this cluster.

    It does for those of that set, for new ones, and for those entered by hand that have not joined and are in no set.
    """
    wanted = record.bounds.cluster_set
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster)) if wanted is not None else None
    if stored is None or doc.labels(stored.document).get(sets.LABEL) == wanted:
        return True
    is_unset = doc.labels(stored.document).get(sets.LABEL, "") in ("", sets.DEFAULT)
    return is_unset and clusters.CLUSTER_UID not in doc.annotations(stored.document)


def _check_set(tx: Transaction, record: CredentialRecord, cluster: ClusterName) -> None:
    if not is_of_set(tx, record, cluster):
        raise ForbiddenError(
            f'the bootstrap credential {record.id} is for clusters of the set "{record.bounds.cluster_set}", and cluster '
            f'"{cluster}" is known already and is not in it'
        )


def bestowed(record: CredentialRecord) -> dict[str, str]:
    """The labels that a cluster gets which joins with the credential; that of its set among them."""
    of_set = {sets.LABEL: record.bounds.cluster_set} if record.bounds.cluster_set else {}
    return {**record.bounds.labels, **of_set}
