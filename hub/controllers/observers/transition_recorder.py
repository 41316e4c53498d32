"""Logs state changes of clusters, add-ons and certificate requests and records them as Events, with actor and next step.

The recorder reads the change log, so each state change is recorded once per hub, regardless of its writer. Heartbeats, reports
without a state change, and objects that exist at the start are not recorded.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from sys import intern
from typing import Any

import structlog

from hub.api import certificatesigningrequests as request_rules, revocations as revocation_rules
from hub.api.certificatesigningrequests import RequestPhase
from hub.api.events import NORMAL, WARNING, EventRecord
from hub.api.managedclusters import agent_annotations, cluster as cluster_rules
from hub.api.managedclusters.agent_annotations import RENEW
from hub.api.managedclusters.availability import has_parted
from hub.api.managedclustersets import LABEL
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, REQUESTS, REVOCATIONS, Kind
from machinery.identity import CLUSTER_LABEL, SIGNER
from machinery.meta import conditions
from machinery.meta.conditions import ADDON_AVAILABLE, FALSE, TRUE, UNKNOWN, Condition
from machinery.meta.objects import ChangeType, Document, Key

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Cluster:
    accepted: bool = False
    deleting: bool = False
    available: str = ""
    duplicated: str = ""
    cluster_set: str = ""
    move_to: str = ""
    renewal: str = ""
    clock: str = ""
    kubernetes: str = ""


class TransitionRecorder:
    """Observer that remembers states and records their changes. `record_event` records an Event without blocking."""

    def __init__(self, record_event: Callable[[EventRecord], None] = lambda _event: None) -> None:
        self._record_event = record_event
        self._clusters: dict[Key, _Cluster] = {}
        self._requests: dict[Key, tuple[RequestPhase, bool]] = {}
        """The phase of each request, and whether the hub signs it."""
        self._unavailable_addons: dict[Key, None] = {}
        self._known: dict[Kind, dict[Key, Any]] = {
            MANAGED_CLUSTERS: self._clusters,
            REQUESTS: self._requests,
            ADDONS: self._unavailable_addons,
        }
        self._unlisted: set[tuple[Kind, Key]] = set()
        """Objects known before a relisting and not listed since. They count as deleted when the first change follows."""
        self.phases: Counter[str] = Counter()
        """Number of requests that entered each phase since the start."""
        self.availability: Counter[str] = Counter()
        """How often clusters became True, False or Unknown since the start."""

    def by_phase(self) -> Mapping[str, int]:
        """Return the number of existing certificate requests in each phase, without those of other signers."""
        return Counter(phase.value for phase, is_ours in tuple(self._requests.values()) if is_ours)

    def relisting(self) -> None:
        """Prepare for a new list of all objects. States stay until the next change, which drops states of unlisted objects."""
        self._unlisted = {(kind, key) for kind, keys in self._known.items() for key in keys}

    def listed(self, kind: Kind, key: Key, document: Document) -> None:
        """Process an existing object; the actor of its last change is unknown."""
        self._unlisted.discard((kind, key))
        if kind == MANAGED_CLUSTERS:
            self._cluster(key, document, is_initial=key not in self._clusters)
        elif kind == REQUESTS:
            self._request(key, document, is_initial=key not in self._requests)
        elif kind == ADDONS:
            self._addon(key, document, is_initial=True)

    def changed(self, kind: Kind, key: Key, document: Document, change: ChangeType, actor: str) -> None:
        """Process a change by `actor`. `document` is the object after the change, or the deleted object."""
        for of, unlisted in self._unlisted:  # their deletion was not observed; actor and time are unknown
            self._known[of].pop(unlisted, None)
        self._unlisted.clear()
        if change is ChangeType.DELETED:
            self._known.get(kind, {}).pop(key, None)
            if kind == MANAGED_CLUSTERS:
                log.info("cluster deleted", cluster=key.name, by=actor)
                self._record(key.name, document, "Deleted", f"deleted by {actor}")
        elif kind == MANAGED_CLUSTERS:
            self._cluster(key, document, by=actor)
        elif kind == REQUESTS:
            self._request(key, document, by=actor)
        elif kind == ADDONS:
            self._addon(key, document)
        elif kind == REVOCATIONS and change is ChangeType.ADDED:
            self._revocation(key, document)

    def _cluster(self, key: Key, document: Document, *, by: str = "", is_initial: bool = False) -> None:
        available, duplicate = cluster_rules.availability(document), _condition(document, cluster_rules.DUPLICATED)
        duplicated = duplicate.message if duplicate and duplicate.status == TRUE else ""
        clock = _condition(document, conditions.CLOCK_SYNCED)
        now = _Cluster(
            accepted=cluster_rules.is_accepted(document),
            deleting=doc.is_deleting(document),
            available=(available.message if has_parted(available) else available.status) if available else "",
            duplicated=duplicated,
            cluster_set=doc.labels(document).get(LABEL, ""),
            move_to=agent_annotations.move_to(document),
            renewal=doc.annotations(document).get(RENEW, ""),
            clock=clock.status if clock else "",
            kubernetes=intern(str(doc.mapping(document, "status", "version").get("kubernetes") or "")),
        )
        before, self._clusters[key] = self._clusters.get(key), now
        if is_initial or now == before:
            return
        cluster_log, record = log.bind(cluster=key.name, **_by(by)), partial(self._record, key.name, document)
        if before is None:
            following = {} if now.accepted else {"next": f"hubctl accept {key.name}"}
            cluster_log.info("cluster registered", accepted=now.accepted, **following)
            wait = "" if now.accepted else f": it waits for `hubctl accept {key.name}`"
            record("Registered", f"registered{_with(by)}{wait}")
            before = _Cluster(accepted=now.accepted)
        if now.accepted != before.accepted:
            verdict = "accepted" if now.accepted else "denied"
            cluster_log.info(f"cluster {verdict}")
            record(verdict.capitalize(), f"{verdict}{_with(by)}")
        if before.cluster_set not in ("", now.cluster_set):  # not when a new cluster gets its first set
            cluster_log.info("cluster moved", cluster_set=now.cluster_set, before=before.cluster_set)
            record(
                "ClusterSetChanged", f"moved from cluster set {before.cluster_set} to {now.cluster_set or 'none'}{_with(by)}"
            )
        if now.deleting and not before.deleting:
            cluster_log.info("cluster is being deleted", waits_for=list(doc.finalizers(document)))
            record("DeletionBegun", f"is being deleted{_with(by)}: it waits for {', '.join(doc.finalizers(document))}")
        if available and now.available != before.available:
            self.availability[available.status] += 1
            fields = {"available": available.status, "reason": available.reason, "detail": available.message}
            log.info("cluster availability changed", cluster=key.name, **fields)
            record(available.reason, available.message, well=available.status == TRUE or has_parted(available))
        for reason, message in _ordered(now, before, available):
            cluster_log.info("order for a cluster", reason=reason, detail=message)
            record(reason, f"{message}{_with(by)}")
        if duplicated and duplicated != before.duplicated:
            cluster_log.warning("cluster is registered twice", detail=duplicated)
            record("Duplicated", duplicated, well=False)
        self._of_the_agent(key, document, now, before)

    def _of_the_agent(self, key: Key, document: Document, now: _Cluster, before: _Cluster) -> None:
        if now.kubernetes and before.kubernetes not in ("", now.kubernetes):
            log.info(
                "Kubernetes version of a cluster changed", cluster=key.name, version=now.kubernetes, before=before.kubernetes
            )
            changed = f"Kubernetes {now.kubernetes}; it was {before.kubernetes}"
            self._record(key.name, document, "KubernetesVersionChanged", changed)
        clock = _condition(document, conditions.CLOCK_SYNCED)
        if clock is not None and now.clock != before.clock and FALSE in (now.clock, before.clock):
            log.info("clock synchronization of a cluster changed", cluster=key.name, synced=now.clock)
            self._record(key.name, document, clock.reason, clock.message, well=now.clock == TRUE)

    def _addon(self, key: Key, document: Document, *, is_initial: bool = False) -> None:
        """Record a change of health, except a change to Unknown, because the silent cluster already has an alarm."""
        available = _condition(document, ADDON_AVAILABLE)
        if available is None or available.status == UNKNOWN:
            return
        is_unavailable = available.status == FALSE
        if is_unavailable is (key in self._unavailable_addons):
            return
        if is_unavailable:
            self._unavailable_addons[key] = None
        else:
            del self._unavailable_addons[key]
        if not is_initial:
            reason = "AddOnUnavailable" if is_unavailable else "AddOnAvailable"
            log.info("add-on availability changed", cluster=key.namespace, addon=key.name, available=available.status)
            message = f"{available.reason}: {available.message}"
            self._record(key.namespace, document, reason, message, well=not is_unavailable)

    def _revocation(self, key: Key, document: Document) -> None:
        status, message = doc.mapping(document, "status"), revocation_rules.describe(document)
        cluster = str(status.get("cluster") or "")
        log.warning("revoked", revocation=key.name, detail=message, by=status.get("revokedBy"))
        about: Document = document
        if cluster and (uid := status.get("clusterUID")):
            about = doc.typed({"metadata": {"name": cluster, "uid": uid}}, cluster_rules.API_VERSION, "ManagedCluster")
        self._record(cluster, about, "Revoked", message, well=False)

    def _record(self, cluster: str, about: Document, reason: str, message: str, *, well: bool = True) -> None:
        self._record_event(EventRecord(cluster, about, reason, message, NORMAL if well else WARNING))

    def _request(self, key: Key, document: Document, *, by: str = "", is_initial: bool = False) -> None:
        phase, is_ours = request_rules.phase(document), doc.mapping(document, "spec").get("signerName") == SIGNER
        before = self._requests[key][0] if key in self._requests else None
        self._requests[key] = phase, is_ours
        if is_initial or phase is before:
            return
        if phase is RequestPhase.ISSUED and before is not RequestPhase.APPROVED:
            self.phases[RequestPhase.APPROVED.value] += 1  # a rule's approval and the signature are one change
        self.phases[phase.value] += 1
        cluster = doc.labels(document).get(CLUSTER_LABEL, "")
        cluster_log = log.bind(request=key.name, cluster=cluster, **_by(by))
        if before is None:
            cluster_log.info("certificate requested")
        if phase is not RequestPhase.PENDING:
            state = request_rules.state(document)
            level = "warning" if phase is RequestPhase.FAILED else "info"
            getattr(cluster_log, level)(f"certificate request {phase.lower()}", reason=state.reason, detail=state.message)
            if phase is not RequestPhase.APPROVED:  # only the end of a request is an Event, because thousands may join together
                why = f": {state.message}" if phase is not RequestPhase.ISSUED and state.message else ""
                message = f"certificate request {phase.lower()}{_with(by)}{why}"
                self._record(cluster, document, f"Certificate{phase}", message, well=phase is not RequestPhase.FAILED)


def _ordered(now: _Cluster, before: _Cluster, available: Condition | None) -> Iterator[tuple[str, str]]:
    if now.move_to and now.move_to != before.move_to:
        yield "MoveRequested", f"asked to move to the hub {now.move_to}"
    elif now.move_to != before.move_to:
        if available is not None and has_parted(available) and before.move_to in available.message:
            yield "MoveCompleted", f"moved to the hub {before.move_to}"
        else:
            yield "MoveCancelled", f"no longer asked to move to the hub {before.move_to}"
    if now.renewal and now.renewal != before.renewal:
        yield "RenewalRequested", f"asked to renew every certificate issued before {now.renewal.partition('/')[0]}"


def _condition(document: Document, kind: str) -> Condition | None:
    return conditions.find(doc.conditions(document), kind)


def _with(actor: str) -> str:
    return f" by {actor}" if actor else ""


def _by(actor: str) -> dict[str, Any]:
    return {"by": actor} if actor else {}
