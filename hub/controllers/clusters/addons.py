"""Controllers of ManagedClusterAddOns.

addon-discovery  labels `feature.open-cluster-management.io/addon-<name>` of ManagedClusters: the state of each add-on
addon-health     condition Available of the add-ons of a silent cluster: Unknown, with the cluster's reason; the previous
                 status returns when the cluster sends beats again
addon-tokens     ServiceAccount, Role, RoleBinding and condition TokenInfrastructureReady of add-ons that register by token;
                 the objects exist while they are needed, and are restored after a change

Sources: OCM's add-on feature discovery and health check controllers, and its add-on manager.
"""

from functools import partial

from hub.api.events import NORMAL, WARNING, EventRecord
from hub.api.managedclusteraddons import addon as addon_rules, health as health_rules
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, MANAGED_CLUSTERS, Kind
from hub.controllers import ACTOR
from hub.controllers.builder import ControllerBuilder
from hub.registry.managedclusteraddons import service as addons
from machinery.meta.conditions import TRUE
from machinery.meta.objects import Document, Key


def register(builder: ControllerBuilder) -> None:
    store, fleet = builder.store, builder.fleet

    async def update_token(key: Key) -> None:
        condition = await store.run(addons.update_token, key, f"{ACTOR}:addon-tokens")
        stored = await store.read(lambda tx: tx.objects.get(ADDONS, key)) if condition is not None else None
        if condition is not None and stored is not None:
            kind = NORMAL if condition.status == TRUE else WARNING
            builder.record_event(EventRecord(key.namespace, stored.document, condition.reason, condition.message, kind))

    discovery = builder.add_use_case("addon-discovery", addons.update_feature_labels)
    health = builder.add_use_case("addon-health", addons.update_health)
    tokens = builder.add_step("addon-tokens", update_token)

    def needs_tokens(addon: Document) -> bool:
        return addon_rules.wants_token(addon) or addon_rules.has_token_condition(addon)

    def is_token_part(part: Document) -> bool:
        return addon_rules.token_owner(part) is not None

    def lacks_labels(cluster: Document) -> bool:
        """Whether the cluster's feature labels differ from the state of its add-ons."""
        labelled = health_rules.with_labels(cluster, fleet.features(doc.name(cluster)))
        return doc.labels(labelled) != doc.labels(cluster)

    def part_changed(kind: Kind, key: Key) -> None:
        tokens.enqueue(addon_rules.addon_of_token_part(kind, key))

    fleet.on_addons.append(discovery.enqueue)
    builder.watch(ADDONS, tokens.enqueue, needs_tokens, deleted=True)
    builder.watch(ADDONS, lambda key: health.enqueue(key.namespace), fleet.addon_needs_health)
    for kind in addon_rules.TOKEN_KINDS:
        builder.watch(kind, partial(part_changed, kind), is_token_part, deleted=True)
    builder.watch_names(MANAGED_CLUSTERS, discovery, lacks_labels)
    builder.watch_names(MANAGED_CLUSTERS, health, fleet.needs_health)
