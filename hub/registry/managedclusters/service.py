"""Use cases about ManagedClusters: the one write path of the kind."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from hub.api.certificates.revocation import CLUSTER_DELETED, CLUSTER_REBUILT
from hub.api.liveness.lease import DEFAULT_LEASE_DURATION
from hub.api.managedclusters import admission, removal
from hub.api.managedclusters import cluster as rules
from hub.api.managedclusters import duplicates as duplicate
from hub.api.managedclusters.agent_annotations import with_agent_version
from hub.api.managedclusters.cluster import Joined, JoinRequest, StatusReport
from hub.api.managedclusters.transition import TransitionSubject as Judged
from hub.api.managedclusters.transition import transition
from hub.api.managedclustersets.clusterset import with_namespace_conditions
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, Document, Key, StoredObject
from hub.api.objects.managed_fields import AGENT_WRITER, HUB_WRITER
from hub.ports import Transaction, Written
from hub.registry.certificates import service as certificates
from hub.registry.certificatesigningrequests import credential_uses
from hub.registry.core import namespaces
from hub.registry.managedclusters import content
from hub.registry.managedclusters import default_set as membership
from hub.registry.objects.write import store
from machinery.errors import AlreadyExistsError, ErrorSubject, ForbiddenError, NotFoundError
from machinery.identity import ClusterName, CredentialId, cluster_name, parse_bootstrap_user
from machinery.meta.conditions import Condition

GROUP = rules.RESOURCE.partition(".")[2]


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str, *, writer: str = "") -> Written:
    """Creates (`old` None) or updates; owns defaults and admission. A bootstrap credential admits the name that it creates.

    `writer`: see `writing.store`. Raises InvalidError, AlreadyExistsError, ConflictError, ForbiddenError.
    """
    before = old.document if old else None
    if old is None:
        namespaces.check_free(tx, doc.name(new))
    if old is None and (credential := parse_bootstrap_user(actor)) is not None:
        new = _admitted(tx, credential, new)
    document = membership.with_default(tx, admission.admitted(new, before, tx.now))
    if duplicate.is_rebuilt(document, before):
        document = _hand_over(tx, document)
    document = doc.stamped(document, before, uid=old.uid if old else str(uuid4()), now=tx.now, generations=True)
    if doc.is_deleting(document) and old is not None and not doc.finalizers(document):
        if not content.is_there(tx, old.key.name):
            return remove(tx, old, actor)
        document = removal.held(document)  # somebody put it there while others held the cluster
    if rules.is_denial(before, document):
        document = doc.with_status_condition(document, rules.DENIED, tx.now)
    if rules.is_accepted(document) and not (before and rules.is_accepted(before)):
        namespaces.ensure_of_cluster(tx, doc.name(document), actor)
    if before is not None and rules.is_revoked(before) and not certificates.has_agent(tx, ClusterName(doc.name(document))):
        # a beat or a report that its former agent has sent meanwhile
        document = doc.with_status_condition(document, rules.REVOKED, tx.now)
    _note(tx, before, document, actor)
    return store(tx, MANAGED_CLUSTERS, document, old, actor, writer=writer)


def _admitted(tx: Transaction, credential: CredentialId, new: dict[str, Any]) -> dict[str, Any]:
    """The ManagedCluster that a bootstrap credential makes by itself, with the labels that it bestows."""
    record, _ = credential_uses.admit(tx, credential, cluster_name(doc.name(new)))
    labels = credential_uses.bestowed(record)
    return doc.with_metadata(new, labels={**doc.labels(new), **labels}) if labels else new


def _note(tx: Transaction, before: Document | None, after: Document | None, actor: str) -> None:
    """Keeps what became of the availability."""
    document = after or before
    old, new = (rules.availability(each) if each else None for each in (before, after))
    if document is None or (old is None and new is None):
        return
    judged = Judged(ClusterName(doc.name(document)), str(doc.mapping(document, "metadata").get("uid")))
    if found := transition(judged, old, new, tx.now, actor):
        tx.transitions.add(found)


def remove(tx: Transaction, old: StoredObject, actor: str) -> Written:
    """Deletes, with its beats, and revokes its certificates; marks it as deleting while finalizers or its content remain.

    What else belongs to it goes first: `hub.registry.deletion.clusters`, which the hub's own finalizer waits for.
    """
    document = old.document
    if not doc.is_deleting(document) and (doc.finalizers(document) or content.is_there(tx, old.key.name)):
        return put(tx, doc.deleting(removal.held(document), tx.now), old, actor)
    certificates.revoke_cluster(tx, ClusterName(old.key.name), CLUSTER_DELETED)
    tx.credentials.forget_name(ClusterName(old.key.name))
    tx.bindings.release(ClusterName(old.key.name))
    tx.heartbeats.forget(ClusterName(old.key.name))
    tx.trusts.forget(ClusterName(old.key.name))
    _note(tx, document, None, actor)
    return tx.objects.delete(MANAGED_CLUSTERS, old, actor)


def find(tx: Transaction, name: ClusterName) -> StoredObject:
    """Raises NotFoundError."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    if stored is None:
        raise NotFoundError(f'{rules.RESOURCE} "{name}" not found', subject=_subject(name))
    return stored


def acceptance(tx: Transaction, name: ClusterName) -> rules.Acceptance:
    """Whether an operator accepted the cluster."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    return rules.acceptance(stored.document) if stored is not None else rules.Acceptance.ABSENT


def require_accepted(stored: StoredObject) -> None:
    """Raises ForbiddenError for a cluster that the hub denies, or has not accepted yet."""
    name = stored.key.name
    if not rules.is_accepted(stored.document):
        raise ForbiddenError(
            f'cluster "{name}" is not accepted: an operator accepts it with `hubctl accept {name}`', subject=_subject(name)
        )


def ensure(tx: Transaction, joining: JoinRequest, actor: str, *, lease_duration: timedelta = DEFAULT_LEASE_DURATION) -> Joined:
    """Creates or finds the ManagedCluster of a join.

    A bootstrap credential is checked and admits the name at most once. AlreadyExistsError: the name belongs to a cluster with
    another uid; commit `note_duplicate` in a transaction of its own, so that operators see it. ForbiddenError: the credential
    is not for this name. NotFoundError: a cluster came with its own certificate, and the hub has forgotten it.
    """
    cluster_name(joining.name)
    duplicate.check_uid(joining.cluster_uid)
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", joining.name))
    if stored is not None and not rules.is_same_cluster(stored.document, joining.cluster_uid):
        if joining.credential is not None:  # who may not register this name is told nothing of it, and notes nothing
            credential_uses.check(tx, joining.credential, joining.name, joining.agent)
        raise AlreadyExistsError(
            f'the cluster name "{joining.name}" belongs to another cluster: register under another name, or, if this is that '
            f"cluster rebuilt, have an operator say so: hubctl accept {joining.name} --rebuilt",
            subject=_subject(joining.name),
        )
    labels: Mapping[str, str] = {}
    if joining.credential is not None:
        record, is_new = credential_uses.admit(tx, joining.credential, joining.name, joining.agent, joining.attested)
        labels = credential_uses.bestowed(record) if is_new else {}
    if stored is None:
        return _join(tx, replace(joining, labels={**joining.labels, **labels}), actor, lease_duration)
    _adopt(tx, stored, joining, actor, labels)
    return Joined(created=False, accepted=rules.is_accepted(stored.document), uid=stored.uid)


def enter(tx: Transaction, joining: JoinRequest, actor: str, lease_duration: timedelta) -> Joined:
    """Creates the ManagedCluster of a join, not accepted. Whether that may be was found out before, and that none is there."""
    tx.heartbeats.forget(joining.name)
    tx.trusts.forget(joining.name)
    document = admission.admitted(rules.joining_document(joining, lease_duration), None, tx.now)
    document = membership.with_default(tx, document)
    if joining.attested is not None:
        document = doc.with_status_condition(document, rules.attested(joining.attested), tx.now)
    document = doc.stamped(document, None, uid=str(uuid4()), now=tx.now, generations=True)
    store(tx, MANAGED_CLUSTERS, document, None, actor, writer=AGENT_WRITER)
    return Joined(created=True, accepted=False, uid=str(document["metadata"]["uid"]))


def _join(tx: Transaction, joining: JoinRequest, actor: str, lease_duration: timedelta) -> Joined:
    if joining.credential is None:
        raise NotFoundError(
            f'{rules.RESOURCE} "{joining.name}" not found: it was deleted; register again with a bootstrap kubeconfig',
            subject=_subject(joining.name),
        )
    return enter(tx, joining, actor, lease_duration)


def _adopt(tx: Transaction, stored: StoredObject, joining: JoinRequest, actor: str, bestowed: Mapping[str, str]) -> None:
    """Notes the uid of a cluster that an operator entered before it came, and what else the agent may set.

    `bestowed`: labels that its bootstrap credential gives it, once.
    """
    new = rules.adopted(stored.document, joining)
    if bestowed:
        new = doc.with_metadata(new, labels={**doc.labels(new), **bestowed})
    if joining.client_configs:
        new = doc.with_spec(new, managedClusterClientConfigs=rules.merged_client_configs(new, joining.client_configs))
    if joining.attested is not None:
        new = doc.with_status_condition(new, rules.attested(joining.attested), tx.now)
    _write_changed(tx, new, stored, actor, AGENT_WRITER)


def note_duplicate(tx: Transaction, joining: JoinRequest, actor: str) -> None:
    """Sets the condition ManagedClusterDuplicated: another cluster wanted this name. An operator may let it have it."""
    stored = find(tx, joining.name)
    new = doc.with_status_condition(stored.document, duplicate.wanted(joining), tx.now)
    noted = doc.with_annotations(new, {duplicate.WANTED_BY: joining.cluster_uid} if joining.cluster_uid else {})
    _write_changed(tx, noted, stored, actor, HUB_WRITER)


def _hand_over(tx: Transaction, new: Document) -> dict[str, Any]:
    """The rebuilt cluster takes the name: nothing of the one before opens anything, and nothing is known of its life."""
    name = ClusterName(doc.name(new))
    certificates.revoke_cluster(tx, name, CLUSTER_REBUILT)
    tx.bindings.release(name)
    tx.heartbeats.forget(name)
    tx.trusts.forget(name)
    return doc.with_status_condition(duplicate.without_former(new), duplicate.REBUILT, tx.now)


def set_accepted(tx: Transaction, name: ClusterName, accepted: bool, actor: str) -> Written | StoredObject:  # noqa: FBT001 - the field's value
    """Sets `spec.hubAcceptsClient`. Raises NotFoundError."""
    stored = find(tx, name)
    return _write_changed(tx, doc.with_spec(stored.document, hubAcceptsClient=accepted), stored, actor, HUB_WRITER)


def report_status(tx: Transaction, name: ClusterName, report: StatusReport, actor: str) -> Written | StoredObject:
    """Replaces what the agent owns in the status; equal content writes nothing. ForbiddenError: the hub denies the cluster."""
    stored = find(tx, name)
    require_accepted(stored)
    new = with_agent_version(rules.with_report(stored.document, report, tx.now), report.agent_version)
    new = duplicate.without_refusal(new, tx.now)
    if report.namespaces:
        new = with_namespace_conditions(new, report.namespaces, tx.now)
    return _write_changed(tx, new, stored, actor, AGENT_WRITER)


def set_condition(tx: Transaction, name: ClusterName, condition: Condition, actor: str) -> Written | StoredObject:
    """Sets one condition that the hub owns; equal content writes nothing. Raises NotFoundError."""
    stored = find(tx, name)
    return _write_changed(tx, doc.with_status_condition(stored.document, condition, tx.now), stored, actor, HUB_WRITER)


def note_revoked(tx: Transaction, name: ClusterName, actor: str) -> None:
    """Availability is unknown from now on where the cluster's agents have no certificate left. None of that name: nothing."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    if stored is not None and rules.availability(stored.document) is not None and not certificates.has_agent(tx, name):
        set_condition(tx, name, rules.REVOKED, actor)


def _write_changed(tx: Transaction, new: Document, old: StoredObject, actor: str, writer: str) -> Written | StoredObject:
    return put(tx, dict(new), old, actor, writer=writer) if doc.differs(new, old.document) else old


def _subject(name: str) -> ErrorSubject:
    return ErrorSubject(name=name, group=GROUP, kind="managedclusters")
