"""Connects the controllers of cluster sets, bindings, managed namespaces, add-ons and profiles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hub.api import clusterprofiles, managedclustersets
from hub.api.events import EventRecord
from hub.api.managedclusteraddons import addon as addon_token
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, CLUSTER_PROFILES, CLUSTER_SET_BINDINGS, CLUSTER_SETS, MANAGED_CLUSTERS, Kind
from hub.controllers.addons import discovery as addon_discovery
from hub.controllers.addons import health as addon_health
from hub.controllers.addons import tokens as addon_tokens
from hub.controllers.addons.discovery import AddOnDiscovery
from hub.controllers.addons.health import AddOnHealth
from hub.controllers.addons.tokens import AddOnTokens
from hub.controllers.batch import TOGETHER, Batched
from hub.controllers.clusters import (
    cluster_profiles,
    cluster_sets,
    default_set,
    managed_namespaces,
    set_bindings,
    standing_sets,
    survey,
)
from hub.controllers.clusters.cluster_profiles import ClusterProfiles, ProfiledNamespaces
from hub.controllers.clusters.cluster_sets import ClusterSets
from hub.controllers.clusters.default_set import DefaultSet
from hub.controllers.clusters.fleet_index import FleetCallbacks, FleetView
from hub.controllers.clusters.managed_namespaces import ManagedNamespacesController
from hub.controllers.clusters.set_bindings import SetBindings
from hub.controllers.clusters.standing_sets import StandingSets
from hub.controllers.clusters.survey import ClusterResync
from hub.controllers.feed import EventHandler, Observer
from hub.ports import Store
from machinery.meta.objects import Document, Key
from machinery.runtime.controller import Controller

ALL = "all"


@dataclass(frozen=True, slots=True)
class Gates:
    """Optional features."""

    default_cluster_set: bool = True
    """Create the sets `default` and `global`, and put clusters without a set into `default`."""
    cluster_profiles: bool = False
    """Export clusters as ClusterProfiles."""


class FleetControllers:
    """`tell` records an Event without blocking."""

    def __init__(self, store: Store, gates: Gates, tell: Callable[[EventRecord], None]) -> None:
        self._gates = gates
        self._view = FleetView(FleetCallbacks(members=self._recount, reach=self._reached, addons=self._features_changed))
        # ClusterSetEmpty and the number of clusters
        self._sets = Controller(cluster_sets.NAME, ClusterSets(store))
        # existence of `default` and `global`
        self._standing = Controller(standing_sets.NAME, StandingSets(store, tell))
        # clusters without a set
        self._default = _Together(default_set.NAME, DefaultSet(store))
        self._bindings = Controller(set_bindings.NAME, SetBindings(store, self._settle))
        housing = ManagedNamespacesController(store, lambda: self._view.sets)
        self._namespaces = _Together(managed_namespaces.NAME, housing)
        self._survey = Controller(survey.NAME, ClusterResync(store, housing.wanted, self._namespaces.enqueue))
        # feature labels of add-ons
        labelling = AddOnDiscovery(store, self._view.features)
        self._discovery = _Together(addon_discovery.NAME, labelling)
        # add-ons of silent clusters
        self._health = _Together(addon_health.NAME, AddOnHealth(store))
        # token infrastructure of add-ons
        self._tokens = Controller(addon_tokens.NAME, AddOnTokens(store, tell))
        # ClusterProfiles
        self._profiles = _Together(cluster_profiles.NAME, ClusterProfiles(store))
        self._profiled = Controller(f"{cluster_profiles.NAME}-namespaces", ProfiledNamespaces(store, self._profiles.enqueue))
        self.routes: Sequence[EventHandler] = (
            *self._routes_of_sets(),
            *self._routes_of_addons(),
            # after sets and add-ons, which the view must know by then
            EventHandler(MANAGED_CLUSTERS, _name(self._namespaces.enqueue), housing.wanted),
            EventHandler(MANAGED_CLUSTERS, _name(self._discovery.enqueue), labelling.wanted),
            EventHandler(MANAGED_CLUSTERS, _name(self._health.enqueue), self._view.needs_health),
            *(
                (EventHandler(MANAGED_CLUSTERS, _name(self._default.enqueue), default_set.wanted),)
                if gates.default_cluster_set
                else ()
            ),
            *(self._routes_of_profiles() if gates.cluster_profiles else ()),
        )

    @property
    def observer(self) -> Observer:
        """Receives everything before the event handlers."""
        return self._view

    @property
    def controllers(self) -> Sequence[Controller[Any]]:
        together = (self._default, self._namespaces, self._discovery, self._health, self._profiles)
        alone = (self._sets, self._standing, self._bindings, self._survey, self._tokens, self._profiled)
        return (*alone, *(each.controller for each in together))

    def begin(self) -> None:
        """Call it before everything is listed: enqueues the standing sets, whose absence causes no change."""
        if self._gates.default_cluster_set:
            for name in managedclustersets.STANDING:
                self._standing.enqueue(name)

    def _routes_of_sets(self) -> Sequence[EventHandler]:
        return (
            EventHandler(CLUSTER_SETS, _name(self._sets.enqueue)),
            EventHandler(CLUSTER_SETS, lambda key: self._bindings.enqueue(Key("", key.name)), deleted=True),
            EventHandler(CLUSTER_SETS, _name(self._standing.enqueue), self._is_standing, deleted=True),
            EventHandler(CLUSTER_SET_BINDINGS, self._bindings.enqueue),
        )

    def _routes_of_addons(self) -> Sequence[EventHandler]:
        parts = (
            EventHandler(kind, partial(self._part_changed, kind), addon_tokens.wanted_of, deleted=True)
            for kind in addon_token.TOKEN_KINDS
        )
        return (
            EventHandler(ADDONS, self._tokens.enqueue, addon_tokens.wanted, deleted=True),
            EventHandler(ADDONS, lambda key: self._health.enqueue(key.namespace), self._view.addon_needs_health),
            *parts,
        )

    def _routes_of_profiles(self) -> Sequence[EventHandler]:
        return (
            EventHandler(MANAGED_CLUSTERS, _name(self._profiles.enqueue), deleted=True),
            EventHandler(CLUSTER_PROFILES, _name(self._profiles.enqueue), clusterprofiles.is_ours, deleted=True),
            EventHandler(CLUSTER_SET_BINDINGS, lambda key: self._profiled.enqueue(Key(key.namespace, "")), deleted=True),
        )

    def _is_standing(self, cluster_set: Document) -> bool:
        return self._gates.default_cluster_set and doc.name(cluster_set) in managedclustersets.STANDING

    def _part_changed(self, kind: Kind, key: Key) -> None:
        self._tokens.enqueue(addon_token.addon_of_token_part(kind, key))

    def _recount(self, name: str) -> None:
        self._sets.queue.add_after(name, cluster_sets.GATHER)

    def _settle(self, binding: Key) -> None:
        self._bindings.enqueue(binding)

    def _features_changed(self, cluster: str) -> None:
        self._discovery.enqueue(cluster)

    def _reached(self, name: str) -> None:
        self._survey.enqueue(ALL)
        if self._gates.cluster_profiles:
            self._profiled.enqueue(Key("", name))


class _Together:
    """A batched reconciler and its controller: names wait in the reconciler, and the queue holds one key for all."""

    def __init__(self, name: str, reconciler: Batched) -> None:
        self._reconciler = reconciler
        self.controller: Controller[str] = Controller(name, reconciler)

    def enqueue(self, name: str) -> None:
        self._reconciler.wants(name)
        self.controller.enqueue(TOGETHER)


def _name(enqueue: Callable[[str], None]) -> Callable[[Key], None]:
    return lambda key: enqueue(key.name)
