"""Controllers of ManagedClusterAddOns.

addon-discovery  labels `feature.open-cluster-management.io/addon-<name>` of ManagedClusters: the state of each add-on
addon-health     condition Available of the add-ons of a silent cluster: Unknown, with the cluster's reason; the previous
                 status returns when the cluster sends beats again
addon-tokens     ServiceAccount, Role, RoleBinding and condition TokenInfrastructureReady of add-ons that register by token;
                 the objects exist while they are needed, and are restored when changed

Sources: OCM's add-on feature discovery and health check controllers, and its add-on manager.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from hub.api.events import NORMAL, WARNING, EventRecord
from hub.api.managedclusteraddons import addon as rules, health as health_rules
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, Kind
from hub.controllers import ACTOR
from hub.controllers.batch import UseCaseReconciler
from hub.controllers.builder import ControllerBuilder
from hub.ports import Store
from hub.registry.managedclusteraddons import service as addon_health
from machinery.meta.conditions import TRUE
from machinery.meta.objects import Document, Key
from machinery.runtime.controller import Reconciler


class AddOnTokens(Reconciler[Key]):
    """Reconciles one add-on. `record_event` records an Event without blocking."""

    def __init__(self, store: Store, record_event: Callable[[EventRecord], None]) -> None:
        self._store = store
        self._record_event = record_event

    async def reconcile(self, key: Key) -> timedelta | None:
        news = await self._store.run(addon_health.update_token, key, f"{ACTOR}:addon-tokens")
        stored = await self._store.read(lambda tx: tx.objects.get(ADDONS, key)) if news is not None else None
        if news is not None and stored is not None:
            kind = NORMAL if news.status == TRUE else WARNING
            self._record_event(EventRecord(key.namespace, stored.document, news.reason, news.message, kind))
        return None


def _needs_tokens(addon: Document) -> bool:
    """Whether a ManagedClusterAddOn has or needs token infrastructure."""
    return rules.wants_token(addon) or rules.has_token_condition(addon)


def _is_token_part(part: Document) -> bool:
    """Whether an object is part of token infrastructure."""
    return rules.token_owner(part) is not None


def register(builder: ControllerBuilder) -> None:
    store, fleet = builder.store, builder.fleet
    labelling = UseCaseReconciler(store, addon_health.update_feature_labels, f"{ACTOR}:addon-discovery")
    discovery = builder.add("addon-discovery", labelling)
    health = builder.add("addon-health", UseCaseReconciler(store, addon_health.update_health, f"{ACTOR}:addon-health"))
    tokens = builder.add("addon-tokens", AddOnTokens(store, builder.record_event))

    def lacks_labels(cluster: Document) -> bool:
        """Whether the cluster's feature labels differ from the state of its add-ons."""
        labelled = health_rules.with_labels(cluster, fleet.features(doc.name(cluster)))
        return doc.labels(labelled) != doc.labels(cluster)

    def part_changed(kind: Kind, key: Key) -> None:
        tokens.enqueue(rules.addon_of_token_part(kind, key))

    fleet.on_addons.append(discovery.enqueue)
    builder.watch(ADDONS, tokens.enqueue, _needs_tokens, deleted=True)
    builder.watch(ADDONS, lambda key: health.enqueue(key.namespace), fleet.addon_needs_health)
    for kind in rules.TOKEN_KINDS:
        builder.watch(kind, partial(part_changed, kind), _is_token_part, deleted=True)
    builder.watch_names(MANAGED_CLUSTERS, discovery, lacks_labels)
    builder.watch_names(MANAGED_CLUSTERS, health, fleet.needs_health)
