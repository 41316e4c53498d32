"""Uses of bootstrap credentials. A use is held for a request, and spent when the certificate is issued.

Reading a credential locks it until the transaction ends, so that concurrent transactions cannot spend the same use. A revoked
cluster can register again only with a credential that was created after the revocation. A cluster's name is bound to the issuer
of its first attested registration until the cluster is deleted.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from hub.api import (
    bootstrapcredentials as credential_rules,
    certificatesigningrequests as requests,
    managedclustersets as sets,
    revocations,
)
from hub.api.bootstrapcredentials import AttestationError, Attested, Binding, CredentialRecord, CredentialUse, check_binding
from hub.api.certificatesigningrequests import RequestPhase
from hub.api.managedclusters import cluster as clusters
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, REQUESTS, REVOCATIONS
from hub.ports import Transaction
from machinery.errors import DenialCause, ForbiddenError
from machinery.identity import AgentId, ClusterName, CredentialId
from machinery.meta.objects import Key, Query
from machinery.meta.selectors import Operator, Requirement
from machinery.meta.timestamps import format_time


def check_cluster_revocation(tx: Transaction, cluster: ClusterName, since: datetime) -> None:
    """Raise ForbiddenError if the cluster was revoked after `since`, the creation time of its bootstrap credential."""
    moment = cluster_revoked_at(tx, cluster)
    if moment is None or moment < since:
        return
    message = (
        f'cluster "{cluster}" was revoked at {format_time(moment)}, and this bootstrap credential is older: create a new one '
        f"with `hubctl create bootstrap-kubeconfig --cluster {cluster}`"
    )
    raise ForbiddenError(message, causes=DenialCause.CLUSTER_REVOKED.because(message))


def cluster_revoked_at(tx: Transaction, cluster: ClusterName) -> datetime | None:
    """Return the time of the last revocation of the whole cluster; None: the cluster was never revoked."""
    if not tx.objects.has_any(REVOCATIONS):
        return None
    named = Requirement("spec.cluster", Operator.EQUALS, (cluster,))
    return revocations.last_of_cluster(stored.document for stored in tx.objects.find(REVOCATIONS, Query(fields=(named,))).items)


def bind_attested(tx: Transaction, record: CredentialRecord, cluster: ClusterName, attested: Attested | None) -> None:
    """Bind the cluster name to the attested issuer, or check the issuer against the existing binding. Raises AttestationError.

    A bound name requires an attestation, even if the credential does not.
    """
    binding = tx.bindings.of(cluster)
    if attested is not None:
        check_binding(binding, attested)
        if binding is None:
            tx.bindings.bind(Binding(cluster, attested.issuer, attested.subject, attested.key, tx.now))
    elif record.bounds.attestation is not None:
        raise AttestationError(f"the bootstrap credential {record.id} requires an attestation, and there is none")
    elif binding is not None:
        raise AttestationError(f'cluster "{cluster}" is bound to issuer {binding.issuer}, and there is no attestation')


UNKNOWN = "this bootstrap credential is not known to the hub: get a new bootstrap kubeconfig"
GONE = (RequestPhase.DENIED, RequestPhase.FAILED)


def check(tx: Transaction, credential: CredentialId, cluster: ClusterName, agent: AgentId | None = None) -> CredentialRecord:
    """Return the credential. Raises ForbiddenError if it is expired, revoked, used up or not for `cluster`.

    `agent` None: only the cluster is known. A cluster that was admitted before needs no free use.
    """
    record = tx.credentials.by_id(credential)
    if record is None:
        raise ForbiddenError(UNKNOWN)
    credential_rules.check(record, cluster, tx.now)
    check_cluster_revocation(tx, cluster, record.created_at)
    _check_set(tx, record, cluster)
    _check_bound(tx, record, cluster)
    _check_place(tx, record, cluster, agent)
    return record


def left_for(tx: Transaction, cluster: ClusterName) -> Sequence[CredentialRecord]:
    """Return the credentials with which a cluster of this name could register after its deletion.

    A use that is held for another agent counts as free, because that agent's request may be denied.
    """
    revoked_at = cluster_revoked_at(tx, cluster)
    valid = tx.credentials.valid_for(cluster, tx.now)
    younger = [record for record in valid if revoked_at is None or revoked_at < record.created_at]
    return [
        record
        for record in younger
        if record.uses is None or tx.credentials.tally(record.id).issued < record.uses or _has_place(tx, record, cluster, None)
    ]


def admit(
    tx: Transaction,
    credential: CredentialId,
    cluster: ClusterName,
    agent: AgentId | None = None,
    attested: Attested | None = None,
) -> tuple[CredentialRecord, bool]:
    """Admit a cluster name: it holds a use. Returns the credential, and whether the name is new. Raises ForbiddenError."""
    record = check(tx, credential, cluster, agent)
    bind_attested(tx, record, cluster, attested)
    is_new = not tx.credentials.has_admitted(credential, cluster)
    if is_new:
        tx.credentials.admit(credential, cluster, tx.now)
    return record, is_new


def hold(tx: Transaction, credential: CredentialId, cluster: ClusterName, agent: AgentId, request: str) -> None:
    """Record that this agent's request holds a use, without checks. A later request of the agent takes over its unspent use."""
    known = tx.credentials.use_of(credential, cluster, agent)
    if known is None:
        tx.credentials.keep_use(CredentialUse(credential, cluster, agent, request, tx.now))
    elif known.issued_at is None and known.request != request:
        tx.credentials.keep_use(replace(known, request=request))


def use_for(tx: Transaction, credential: CredentialId, cluster: ClusterName, agent: AgentId) -> CredentialUse:
    """Return the agent's use of the credential, or else a new, unstored use. Raises ForbiddenError if no use is left."""
    record = tx.credentials.by_id(credential)
    if record is None:
        raise ForbiddenError(UNKNOWN)
    known = tx.credentials.use_of(credential, cluster, agent)
    if known is None or known.issued_at is None:
        _check_place(tx, record, cluster, agent)
    return known or CredentialUse(credential, cluster, agent, "", tx.now)


def spend(tx: Transaction, use: CredentialUse) -> None:
    """Store a use as spent, once per agent. Call it in the transaction of `use_for`, which has locked the credential."""
    known = tx.credentials.use_of(use.credential, use.cluster, use.agent)
    if known is None or known.issued_at is None:
        tx.credentials.keep_use(use)


def _check_place(tx: Transaction, record: CredentialRecord, cluster: ClusterName, agent: AgentId | None) -> None:
    """Raise ForbiddenError unless this agent has a use, or a use is free after unneeded uses are given back."""
    if record.uses is None or tx.credentials.tally(record.id).taken < record.uses or _has_place(tx, record, cluster, agent):
        return
    _give_back(tx, record)
    tally = tx.credentials.tally(record.id)
    if tally.taken - _held_by_name(tx, record, cluster) >= record.uses:
        raise credential_rules.no_use_error(record, tally)


def _has_place(tx: Transaction, record: CredentialRecord, cluster: ClusterName, agent: AgentId | None) -> bool:
    if agent is None:  # an admitted agent may return even after the deletion of its ManagedCluster; a new agent may not
        spent = (use for use in tx.credentials.uses(record.id) if use.issued_at is not None)
        return tx.credentials.has_admitted(record.id, cluster) or any(use.cluster == cluster for use in spent)
    use = tx.credentials.use_of(record.id, cluster, agent)
    return use is not None and (use.issued_at is not None or _waits(tx, use))


def _held_by_name(tx: Transaction, record: CredentialRecord, cluster: ClusterName) -> int:
    """Return 1 if this cluster's name holds a use and none of its agents holds one; else 0."""
    if not tx.credentials.has_admitted(record.id, cluster):
        return 0
    return int(all(use.cluster != cluster for use in tx.credentials.uses(record.id)))


def _give_back(tx: Transaction, record: CredentialRecord) -> None:
    """Release the uses that are held for requests which are denied, failed or deleted."""
    for use in tx.credentials.uses(record.id):
        if use.issued_at is None and not _waits(tx, use):
            tx.credentials.drop_use(use)
            tx.credentials.forget_name(use.cluster, record.id)


def _waits(tx: Transaction, use: CredentialUse) -> bool:
    stored = tx.objects.get(REQUESTS, Key("", use.request))
    return stored is not None and requests.phase(stored.document) not in GONE


def is_of_set(tx: Transaction, record: CredentialRecord, cluster: ClusterName) -> bool:
    """Whether the credential's cluster set, if any, permits this cluster.

    The set permits its own clusters, new clusters, and clusters that have not joined yet and are in no set except `default`.
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
            f'"{cluster}" exists and is not in this set'
        )


def _check_bound(tx: Transaction, record: CredentialRecord, cluster: ClusterName) -> None:
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster)) if record.cluster != cluster else None
    if stored is not None and clusters.is_bound_only(stored.document):
        raise ForbiddenError(
            f'cluster "{cluster}" requires a bootstrap credential for this name alone, and {record.id} is for {record.scope}: '
            f"create one with `hubctl create bootstrap-kubeconfig --cluster {cluster}`"
        )


def labels_of_credential(record: CredentialRecord) -> dict[str, str]:
    """Return the labels for a cluster that joins with the credential, including the label of its set."""
    of_set = {sets.LABEL: record.bounds.cluster_set} if record.bounds.cluster_set else {}
    return {**record.bounds.labels, **of_set}
