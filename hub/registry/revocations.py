"""Revocation: one transaction writes the certificate records and the Revocation.

The commit notifies all replicas, which end the holders' connections (`hub.access.peers`). Deletion, rebuild and unregistration
of a cluster use `certificates.revoke_cluster`; a denial revokes nothing.
"""

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from hub.api import certificatesigningrequests as request, revocations as revocation_rules
from hub.api.certificates import AGENTS_PURPOSES, CertificateRecord, Purpose
from hub.api.certificatesigningrequests import FAILED, RequestPhase
from hub.api.certificatesigningrequests.checks import claimed_agent
from hub.api.managed_fields import HUB_WRITER
from hub.api.managedclusters import duplicates, removal
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, REQUESTS, REVOCATIONS, SERVICE_ACCOUNTS
from hub.api.revocations import RevocationTarget, RevokedObjects
from hub.ports import Transaction, Written
from hub.registry import certificates, core as accounts, owners
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.certificatesigningrequests import service as request_objects
from hub.registry.generic import declared, objects
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.managedclusters import service as clusters
from machinery.apiserver.resource import TableRow
from machinery.errors import ErrorSubject, InvalidError, MethodNotAllowedError, MusterError, NotFoundError
from machinery.identity import AgentId, ClusterName, CredentialId
from machinery.meta.objects import Document, Key, Query, StoredObject
from machinery.product import GROUP_SUFFIX

KIND = "Revocation"
REFUSED = "ClusterRevoked"


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
    """Create a Revocation and execute it. Raises InvalidError; NotFoundError if the target does not exist."""
    if old is not None:
        raise InvalidError(f"a {KIND} cannot be changed: a revocation is permanent")
    if causes := revocation_rules.violations(new):
        raise InvalidError(causes[0].message, causes=causes)
    target = revocation_rules.target_of(new)
    try:
        ended = revoke(tx, target, revocation_rules.reason_of(new), actor)
    except NotFoundError as error:  # the missing object is the target, not the Revocation
        raise NotFoundError(error.message, subject=ErrorSubject(name=revocation_rules.subject_of(new))) from None
    about = target.cluster or ended.cluster
    if about and any(each.purpose is Purpose.AGENT for each in ended.certificates):
        clusters.note_revoked(tx, about, actor)
    cluster = tx.objects.get(MANAGED_CLUSTERS, Key("", about)) if about else None
    older = [each.created_at for each in tx.credentials.valid_for(target.cluster, tx.now)] if target.cluster else []
    at = max((tx.now, *older))  # not before a credential that exists, for any clock
    status = revocation_rules.status_of(ended, actor, at, cluster=about or "", uid=cluster.uid if cluster else "")
    return objects.write(tx, REVOCATIONS, {**new, "status": status}, None, actor, generations=True)


def create(tx: Transaction, name: str, spec: dict[str, str], actor: str) -> Written:
    """Create and execute a Revocation that the hub decides itself."""
    group = f"hub.{tx.facts.get('group-suffix') or GROUP_SUFFIX}/v1alpha1"
    return put(tx, {"apiVersion": group, "kind": KIND, "metadata": {"name": name}, "spec": spec}, None, actor)


def put_cluster(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
    """Write a cluster with `clusters.put`. If the write gives it to one agent, revoke its other agents. Raises InvalidError."""
    if old is not None and doc.is_deleting(new) and not doc.is_deleting(old.document):
        _end_credentials(tx, old, actor)
    chosen = duplicates.given_to(new)
    if chosen is None:
        return clusters.put(tx, new, old, actor)
    cluster = ClusterName(doc.name(new))
    good = [each for each in tx.certificates.of_cluster(cluster) if each.agent is not None and each.is_open(tx.now)]
    if chosen not in {each.agent for each in good if each.purpose is Purpose.AGENT}:
        known = ", ".join(sorted({str(each.agent) for each in good})) or "none"
        raise InvalidError(f'agent "{chosen[:80]}" has no certificate for cluster "{cluster}"; agents that have one: {known}')
    for agent in sorted({each.agent for each in good if each.agent not in (None, chosen)}):
        why = f"an operator gave the cluster to agent {chosen}"
        spec = {"cluster": cluster, "agent": agent, "reason": revocation_rules.Reason.SUPERSEDED.value, "message": why}
        create(tx, f"{cluster}-{uuid4().hex[:8]}", spec, actor)
    return clusters.put(tx, duplicates.with_one_agent(new, tx.now), old, actor)


def remove_cluster(tx: Transaction, old: StoredObject, actor: str) -> Written:
    """Delete a cluster for an operator with `clusters.remove`, and revoke the bootstrap credentials for exactly this name.

    The request that starts the deletion revokes them: in `put_cluster` if finalizers hold the cluster, else here. So the
    operator's audit record shows the revocations, and the agent cannot register while the cluster's content is removed. The
    agent keeps its certificate until then. Later credentials for this name stay valid. If a cluster leaves, or if the hub
    removes a stale cluster, all credentials stay valid.
    """
    if not doc.is_deleting(old.document):
        _end_credentials(tx, old, actor)
    return clusters.remove(tx, old, actor)


def _end_credentials(tx: Transaction, cluster: StoredObject, actor: str) -> None:
    """Revoke the credentials for exactly this name, each with a Revocation, unless an annotation forbids this."""
    name = ClusterName(cluster.key.name)
    if removal.has_credential_retention(cluster.document):
        return
    for credential in tx.credentials.valid_for(name, tx.now):
        if credential.cluster == name:
            spec = {"reason": revocation_rules.Reason.CESSATION_OF_OPERATION.value, "message": f'cluster "{name}" was deleted'}
            create(tx, f"{name}-{uuid4().hex[:8]}", {**spec, "bootstrapCredential": credential.id}, actor)


def remove(tx: Transaction, old: StoredObject, actor: str) -> Written:
    """Raises MethodNotAllowedError, because a Revocation is a permanent record that cannot be deleted."""
    del tx, old, actor
    raise MethodNotAllowedError(f"a {KIND} cannot be deleted: it is the record of a revocation")


def revoke(tx: Transaction, target: RevocationTarget, reason: str, actor: str) -> RevokedObjects:
    """Revoke everything that the target covers. Earlier revocations keep their time and reason. Raises NotFoundError."""
    if target.cluster is not None and target.agent is not None:
        records = [each for each in tx.certificates.of_cluster(target.cluster) if each.agent == target.agent]
        if not records:
            raise NotFoundError(f'agent "{target.agent}" of cluster "{target.cluster}" not found')
        # the cluster's add-ons and other agents are not affected
        refused = _refuse_requests(tx, target.cluster, target.agent, actor)
        return RevokedObjects(_ended(tx, records, reason), requests=refused)
    if target.cluster is not None:
        return _cluster(tx, target.cluster, reason, actor)
    if target.serial is not None:
        record = tx.certificates.by_serial(target.serial)
        if record is None:
            raise NotFoundError(f"the hub has signed no certificate with serial {target.serial:x}")
        if record.purpose is Purpose.BOOTSTRAP and record.credential is not None:
            return _credential(tx, record.credential, reason, actor)
        return RevokedObjects(_ended(tx, tx.certificates.of_key(record.key_hash), reason))  # also the recovery certificate
    if target.credential is not None:
        return _credential(tx, target.credential, reason, actor)
    raise InvalidError("nothing to revoke is named")


def _cluster(tx: Transaction, cluster: ClusterName, reason: str, actor: str) -> RevokedObjects:
    """Revoke the certificates of the cluster and its add-ons, its requests, and bootstrap credentials for this name."""
    records = tx.certificates.of_cluster(cluster)
    if not records and tx.objects.get(MANAGED_CLUSTERS, Key("", cluster)) is None:
        raise NotFoundError(f'cluster "{cluster}" not found')
    held = _ended(tx, (record for record in records if record.purpose in AGENTS_PURPOSES), reason)
    valid = [each.id for each in tx.credentials.valid_for(cluster, tx.now) if each.cluster == cluster]
    owners.lower_epochs(tx, cluster)
    revoked = [_credential(tx, credential, reason, actor) for credential in valid]
    refused = _refuse_requests(tx, cluster, None, actor)
    return RevokedObjects(
        (*held, *(record for each in revoked for record in each.certificates)),
        tuple(valid),
        refused,
        _end_accounts(tx, cluster, actor),
    )


def _credential(tx: Transaction, credential: CredentialId, reason: str, actor: str) -> RevokedObjects:
    before = [record for record in tx.certificates.of_credential(credential) if record.revoked_at is None]
    credentials.revoke(tx, credential, actor, reason)
    return RevokedObjects(tuple(before), (credential,))


def _ended(tx: Transaction, records: Iterable[CertificateRecord], reason: str) -> tuple[CertificateRecord, ...]:
    """Revoke the unrevoked records. Returns the records that have not expired."""
    standing = tuple(record for record in records if record.revoked_at is None)
    tx.certificates.revoke([record.serial for record in standing], tx.now, reason)
    return tuple(record for record in standing if record.not_after > tx.now)


def _refuse_requests(tx: Transaction, cluster: ClusterName, agent: AgentId | None, actor: str) -> tuple[str, ...]:
    """Deny pending requests. Set approved requests to Failed."""
    refused = []
    for stored in request_objects.of_cluster(tx, cluster):
        phase = request.phase(stored.document)
        is_affected = agent is None or _is_for(stored.document, cluster, agent)
        if not is_affected or phase not in (RequestPhase.PENDING, RequestPhase.APPROVED):
            continue
        message = "the cluster was revoked after this request" if agent is None else "its agent was revoked"
        if phase is RequestPhase.PENDING:
            request_objects.decide(tx, stored.key.name, approve=False, reason=REFUSED, message=message, actor=actor)
        else:
            failed = request.with_decision(stored.document, FAILED, REFUSED, message, tx.now)
            objects.write(tx, REQUESTS, failed, stored, actor, writer=HUB_WRITER)
        refused.append(stored.key.name)
    return tuple(refused)


def _is_for(document: Document, cluster: ClusterName, agent: AgentId) -> bool:
    """Whether a request is for a certificate of this agent, regardless of the requester."""
    try:
        return claimed_agent(certificates.checked_request(request.pem(document))) == (cluster, agent)
    except MusterError:
        return False  # for an add-on, or invalid


def _end_accounts(tx: Transaction, cluster: ClusterName, actor: str) -> int:
    """Delete ServiceAccounts of the cluster's add-ons, which ends their tokens. They are recreated with another uid."""
    found = tx.objects.find(SERVICE_ACCOUNTS, Query(namespace=cluster)).items
    made = [each for each in found if removal.is_made_for(each.document, cluster) and not doc.is_deleting(each.document)]
    for stored in made:
        accounts.remove_account(tx, stored, actor)
    return len(made)


def _ended_cell(row: TableRow) -> str:
    status = doc.mapping(row.document, "status")
    credentials = len(status.get("bootstrapCredentials") or ())
    certificates = int(status.get("certificatesRevoked") or 0)
    return f"{certificates} certificates" + (f", {credentials} credentials" if credentials else "")


REVOCATION = ResourceDefinition(
    declared(
        REVOCATIONS,
        {"Subject": lambda row: revocation_rules.subject_of(row.document), "Ended": _ended_cell},
        validate=lambda new, _old: revocation_rules.violations(new),
        prepare_create=lambda new, _actor, _now: {name: part for name, part in new.items() if name != "status"},
        selectable=revocation_rules.selectable,
    ),
    put=put,
    remove=remove,
)
