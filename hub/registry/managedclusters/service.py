"""Use cases about ManagedClusters. `put` creates and updates clusters. Only `enter` creates the cluster of a join."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from hub.api import managedclustersets as sets
from hub.api.certificatesigningrequests import RequestPhase, phase
from hub.api.liveness import DEFAULT_LEASE_DURATION, grace
from hub.api.managed_fields import AGENT_WRITER, HUB_WRITER
from hub.api.managedclusters import admission, availability, cluster as cluster_rules, duplicates, removal
from hub.api.managedclusters.agent_annotations import with_agent_version
from hub.api.managedclusters.availability import transition
from hub.api.managedclusters.cluster import Joined, JoinRequest, StatusReport
from hub.api.managedclustersets import with_namespace_conditions
from hub.api.meta import document as doc
from hub.api.meta.change import (
    ADDON_SCORES,
    ADDONS,
    CLUSTER_SETS,
    CONFIG_MAPS,
    LEASES,
    MANAGED_CLUSTERS,
    REQUESTS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    Kind,
)
from hub.api.revocations import CLUSTER_DELETED, CLUSTER_REBUILT
from hub.ports import Transaction, Written
from hub.registry import certificates, namespaces
from hub.registry.certificatesigningrequests import credential_uses
from hub.registry.generic import objects
from hub.registry.generic.objects import write
from machinery.errors import AlreadyExistsError, ErrorSubject, ForbiddenError, NotFoundError
from machinery.identity import CLUSTER_LABEL, ClusterName, cluster_name, parse_agent_user, parse_bootstrap_user
from machinery.meta.conditions import TRUE, UNKNOWN, Condition
from machinery.meta.objects import Document, Key, Query, StoredObject
from machinery.meta.selectors import Operator, Requirement


def put(tx: Transaction, new: dict[str, Any], old: StoredObject | None, actor: str, *, writer: str = "") -> Written:
    """Create (`old` None) or update, with defaults and validation. A creator's bootstrap credential must admit the name.

    `writer`: see `hub.registry.generic.objects.write`. Raises InvalidError, AlreadyExistsError, ConflictError, ForbiddenError.
    """
    before = old.document if old else None
    if old is None:
        namespaces.check_free(tx, doc.name(new))
        if (credential := parse_bootstrap_user(actor)) is not None:
            record, _ = credential_uses.admit(tx, credential, cluster_name(doc.name(new)))
            new = _with_labels(new, credential_uses.labels_of_credential(record))
    document, uid = with_default_set(tx, admission.admitted(new, before, tx.now)), old.uid if old else str(uuid4())
    if duplicates.is_rebuilt(document, before):
        _end_cluster(tx, ClusterName(doc.name(document)), CLUSTER_REBUILT)
        document = doc.with_status_condition(duplicates.without_former(document), duplicates.REBUILT, tx.now)
    if doc.is_deleting(document) and old is not None and not doc.finalizers(document):
        if not has_content(tx, old.key.name):
            return remove(tx, old, actor)
        document = removal.with_finalizers(document)  # content was created while other finalizers kept the cluster
    if cluster_rules.is_denial(before, document):
        document = doc.with_status_condition(document, cluster_rules.denied_condition(document), tx.now)
    elif cluster_rules.denial_of(document) is not None:
        document = doc.with_annotations(document, {cluster_rules.DENIED_FOR: None})
    if cluster_rules.is_accepted(document) and not (before and cluster_rules.is_accepted(before)):
        namespaces.ensure_of_cluster(tx, doc.name(document), actor)
    if before is not None:
        is_report = not writer and parse_agent_user(actor) is not None
        document = _with_silence(tx, document, before, is_report=is_report)
    _record_transition(tx, uid, before, document, actor)
    return write(tx, MANAGED_CLUSTERS, document, old, actor, generations=True, writer=writer, uid=uid)


def _with_silence(tx: Transaction, document: dict[str, Any], before: Document, *, is_report: bool) -> dict[str, Any]:
    """Return the document. Availability stays Unknown if the cluster is revoked, or if its agent reports but sends no beats.

    OCM's agent reports at each change of its cluster, also while its Lease is expired. In OCM, agent and hub then replace each
    other's condition until the agent renews the Lease. Here the next beat restores the availability that was reported last.
    """
    name, reported, known = ClusterName(doc.name(document)), *map(cluster_rules.availability, (document, before))
    if cluster_rules.is_revoked(before) and not certificates.has_agent(tx, name):
        return doc.with_status_condition(document, cluster_rules.REVOKED, tx.now)  # no late beat or report changes this
    if not is_report or reported is None or (known is not None and reported.status == known.status):
        return document
    last = tx.heartbeats.of(name)
    if reported.status != UNKNOWN:
        tx.heartbeats.set_available(name, available=reported.status == TRUE)
    ends = last.at + grace(cluster_rules.lease_duration(before)) if last is not None and last.at is not None else tx.now
    if known is None or known.status != UNKNOWN or tx.now < ends:
        return document
    return doc.with_status_condition(document, known, known.last_transition_time or tx.now)


def _record_transition(tx: Transaction, uid: str, before: Document | None, after: Document | None, actor: str) -> None:
    """Record a change of availability, if there was one."""
    old, new = (cluster_rules.availability(each) if each else None for each in (before, after))
    if old is None and new is None:
        return
    cluster = before or doc.with_metadata(after or {}, uid=uid)
    if found := transition(cluster, old, new, tx.now, actor):
        tx.transitions.add(found)


def remove(tx: Transaction, old: StoredObject, actor: str) -> Written:
    """Delete the cluster with its beats and revoke its certificates.

    While finalizers or content remain, only mark it as deleting. A finalizer then keeps the cluster until
    `hub.registry.deletion` has removed the content.
    """
    document, is_marked = old.document, doc.is_deleting(old.document)  # a marked cluster has lost its last finalizer
    if has_content(tx, old.key.name) or (doc.finalizers(document) and not is_marked):
        held = removal.with_finalizers(doc.with_metadata(document, finalizers=None) if is_marked else document)
        return put(tx, held if is_marked else doc.deleting(held, tx.now), old, actor)
    tx.credentials.forget_name(ClusterName(old.key.name))
    _end_cluster(tx, ClusterName(old.key.name), CLUSTER_DELETED)
    _record_transition(tx, old.uid, document, None, actor)
    return tx.objects.delete(MANAGED_CLUSTERS, old, actor)


def _end_cluster(tx: Transaction, name: ClusterName, reason: str) -> None:
    """Revoke the certificates of the former cluster of this name, and delete its records."""
    certificates.revoke_cluster(tx, name, reason)
    tx.bindings.release(name)
    tx.heartbeats.forget(name)
    tx.trusts.forget(name)


def find(tx: Transaction, name: ClusterName) -> StoredObject:
    """Return the ManagedCluster. Raises NotFoundError."""
    return objects.find(tx, MANAGED_CLUSTERS, Key("", name))


def acceptance(tx: Transaction, name: ClusterName) -> cluster_rules.Acceptance:
    """Return the acceptance of the cluster; ABSENT if it does not exist."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    return cluster_rules.acceptance(stored.document) if stored is not None else cluster_rules.Acceptance.ABSENT


def require_accepted(stored: StoredObject) -> None:
    """Raise ForbiddenError for a cluster that is denied or not accepted yet."""
    name = stored.key.name
    if not cluster_rules.is_accepted(stored.document):
        why = f'cluster "{name}" is not accepted: an operator accepts it with `hubctl accept {name}`'
        raise ForbiddenError(why, subject=_subject(name))


def ensure(tx: Transaction, joining: JoinRequest, actor: str, *, lease_duration: timedelta = DEFAULT_LEASE_DURATION) -> Joined:
    """Create or find the ManagedCluster of a join. A bootstrap credential of the join must admit the name, and holds a use.

    Raises AlreadyExistsError if the name belongs to a cluster with another uid; then run `note_duplicate` in a separate
    transaction, so that operators see it. Raises ForbiddenError if the credential is not for this name, and NotFoundError if
    the agent presented its own certificate and the cluster was deleted.
    """
    cluster_name(joining.name)
    duplicates.check_uid(joining.cluster_uid)
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", joining.name))
    if stored is not None and not cluster_rules.is_same_cluster(stored.document, joining.cluster_uid):
        if joining.credential is not None:  # without a right to the name the agent gets no information
            credential_uses.check(tx, joining.credential, joining.name, joining.agent)
        raise AlreadyExistsError(
            f'the cluster name "{joining.name}" belongs to another cluster: register under another name, or, if this is that '
            f"cluster rebuilt, an operator accepts it with `hubctl accept {joining.name} --rebuilt`",
            subject=_subject(joining.name),
        )
    labels: Mapping[str, str] = {}
    if joining.credential is not None:
        record, is_new = credential_uses.admit(tx, joining.credential, joining.name, joining.agent, joining.attested)
        labels = credential_uses.labels_of_credential(record) if is_new else {}
    if stored is None:
        if joining.credential is None:
            why = "not found: it was deleted; register again with a bootstrap kubeconfig"
            raise NotFoundError(f'{cluster_rules.RESOURCE} "{joining.name}" {why}', subject=_subject(joining.name))
        return enter(tx, replace(joining, labels={**joining.labels, **labels}), actor, lease_duration)
    new, known = dict(stored.document), duplicates.uid_of(stored.document) or cluster_rules.availability(stored.document)
    is_joined = cluster_rules.is_accepted(new) and (known or certificates.has_agent(tx, joining.name))
    if joining.credential is None or not is_joined:  # a bootstrap credential changes no cluster that has joined
        new = _with_labels(cluster_rules.adopted(new, joining), labels)
        configs = cluster_rules.merged_client_configs(new, joining.client_configs)
        new = doc.with_spec(new, managedClusterClientConfigs=configs) if joining.client_configs else new
    if joining.attested is not None:
        new = doc.with_status_condition(new, cluster_rules.attested_condition(joining.attested), tx.now)
    put_changed(tx, new, stored, actor, writer=AGENT_WRITER)
    return Joined(created=False, accepted=cluster_rules.is_accepted(stored.document), uid=stored.uid)


def _with_labels(cluster: dict[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    return doc.with_metadata(cluster, labels={**doc.labels(cluster), **labels}) if labels else cluster


def enter(tx: Transaction, joining: JoinRequest, actor: str, lease_duration: timedelta) -> Joined:
    """Create the ManagedCluster of a join, not accepted. The caller has checked that this is allowed and the name is free."""
    tx.heartbeats.forget(joining.name)
    tx.trusts.forget(joining.name)
    document = admission.admitted(cluster_rules.joining_document(joining, lease_duration), None, tx.now)
    document = with_default_set(tx, document)
    if joining.attested is not None:
        document = doc.with_status_condition(document, cluster_rules.attested_condition(joining.attested), tx.now)
    uid = str(uuid4())
    write(tx, MANAGED_CLUSTERS, document, None, actor, generations=True, writer=AGENT_WRITER, uid=uid)
    return Joined(created=True, accepted=False, uid=uid)


def note_duplicate(tx: Transaction, joining: JoinRequest, actor: str) -> None:
    """Set the condition ManagedClusterDuplicated, so that an operator can give the name to the cluster that joins."""
    stored = find(tx, joining.name)
    new = doc.with_status_condition(stored.document, duplicates.duplicate_condition(joining), tx.now)
    noted = doc.with_annotations(new, {duplicates.WANTED_BY: joining.cluster_uid} if joining.cluster_uid else {})
    put_changed(tx, noted, stored, actor)


def report_status(tx: Transaction, name: ClusterName, report: StatusReport, actor: str) -> Written | StoredObject:
    """Replace the agent's part of the status. No write if nothing changes. Raises ForbiddenError before acceptance."""
    stored = find(tx, name)
    require_accepted(stored)
    new = with_agent_version(cluster_rules.with_report(stored.document, report, tx.now), report.agent_version)
    new = duplicates.without_refusal(new, tx.now)
    if report.namespaces:
        new = with_namespace_conditions(new, report.namespaces, tx.now)
    return put_changed(tx, new, stored, actor, writer=AGENT_WRITER)


def set_condition(tx: Transaction, name: ClusterName, condition: Condition, actor: str) -> Written | StoredObject:
    """Set a condition that the hub owns. No write if nothing changes. Raises NotFoundError."""
    stored = find(tx, name)
    return put_changed(tx, doc.with_status_condition(stored.document, condition, tx.now), stored, actor)


def note_revoked(tx: Transaction, name: ClusterName, actor: str) -> None:
    """Set availability to Unknown if the cluster exists and its agents have no valid certificate."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    if stored is not None and cluster_rules.availability(stored.document) is not None and not certificates.has_agent(tx, name):
        set_condition(tx, name, cluster_rules.REVOKED, actor)


def put_changed(
    tx: Transaction, new: Document, old: StoredObject, actor: str, *, writer: str = HUB_WRITER
) -> Written | StoredObject:
    """Write the cluster `new` with `put` and the field manager `writer`. If nothing changes, write nothing and return `old`."""
    return put(tx, dict(new), old, actor, writer=writer) if doc.differs(new, old.document) else old


def _subject(name: str) -> ErrorSubject:
    return ErrorSubject(name=name, group=cluster_rules.GROUP, kind="managedclusters")


def with_default_set(tx: Transaction, cluster: Document) -> dict[str, Any]:
    """Return the ManagedCluster, in the set `default` if it has no set and the hub has this set."""
    if not sets.lacks_set(cluster):
        return dict(cluster)
    found = tx.objects.get(CLUSTER_SETS, Key("", sets.DEFAULT))
    return dict(cluster) if found is None or doc.is_deleting(found.document) else sets.in_default(cluster)


def note_clock_skew(tx: Transaction, cluster: ClusterName, skew: timedelta, limit: timedelta, actor: str) -> None:
    """Set ManagedClusterConditionClockSynced if its status changes. Does nothing unless the cluster exists and is accepted."""
    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", cluster))
    if stored is None or not cluster_rules.is_accepted(stored.document):
        return
    condition = availability.clock_condition(stored.document, skew, limit)
    if availability.is_clock_news(stored.document, condition):
        set_condition(tx, cluster, condition, actor)


MADE_FOR_CLUSTERS = (ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, SECRETS, CONFIG_MAPS, LEASES)
"""Kinds of objects that the hub makes for clusters and add-ons, with labels that contain their names."""


def content_of(tx: Transaction, name: str) -> Iterator[tuple[Kind, StoredObject]]:
    """Return all objects that must be removed before the cluster, with their kinds, add-ons first."""
    for kind in (ADDONS, ADDON_SCORES):
        yield from ((kind, stored) for stored in objects.each(tx, kind, Query(namespace=name)))
    for kind in MADE_FOR_CLUSTERS:
        found = objects.each(tx, kind, Query(namespace=name))
        yield from ((kind, stored) for stored in found if removal.is_made_for(stored.document, name))
    found = objects.each(tx, REQUESTS, Query(labels=(Requirement(CLUSTER_LABEL, Operator.EQUALS, (name,)),)))
    yield from ((REQUESTS, stored) for stored in found if phase(stored.document) is RequestPhase.PENDING)


def has_content(tx: Transaction, name: str) -> bool:
    return next(content_of(tx, name), None) is not None
