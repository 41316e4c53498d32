"""In-memory index of cluster sets and add-ons. It maps a change of one object to the other objects that it affects.

The index only selects objects to reconcile. Transactions decide on the stored objects.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hub.api import managedclustersets
from hub.api.managedclusteraddons import health as addon_health
from hub.api.managedclusters.cluster import availability
from hub.api.managedclustersets import ClusterSet
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, CLUSTER_SETS, MANAGED_CLUSTERS, Kind
from machinery.meta.objects import ChangeType, Document, Key

Callback = Callable[[str], None]
"""Called with a name. The callback must not block."""


@dataclass(frozen=True, slots=True)
class _Membership:
    """The sets of a cluster. `age`: the version of the selectors with which they were computed."""

    age: int
    sets: frozenset[str]


@dataclass(frozen=True, slots=True)
class _AddOn:
    """The state for an add-on's label ("": no label), and the reason of the cluster's silence in the add-on's status."""

    state: str = ""
    silence: str | None = None


class FleetIndex:
    """Observer that maintains the index. Sets and add-ons must be listed before clusters."""

    def __init__(self) -> None:
        self.on_members: list[Callback] = []
        """Called with the name of a set whose members may have changed."""
        self.on_reach: list[Callback] = []
        """Called with the name of a set that was created or deleted, or whose selector or managed namespaces have changed."""
        self.on_addons: list[Callback] = []
        """Called with the name of a cluster whose feature labels may have to change."""
        self._sets: dict[str, ClusterSet] = {}
        self._selecting: tuple[ClusterSet, ...] = ()
        self._age = 0
        self._clusters: dict[str, _Membership] = {}
        self._addons: dict[str, dict[str, _AddOn]] = {}
        self._silent: dict[str, str] = {}

    @property
    def sets(self) -> Iterable[ClusterSet]:
        return self._sets.values()

    def features(self, cluster: str) -> Mapping[str, str]:
        return {name: addon.state for name, addon in self._addons.get(cluster, {}).items() if addon.state}

    def needs_health(self, cluster: Document) -> bool:
        silence = addon_health.reason_of(availability(cluster))
        return any(addon.silence != silence for addon in self._addons.get(doc.name(cluster), {}).values())

    def addon_needs_health(self, addon: Document) -> bool:
        return addon_health.silence_of(addon) != self._silent.get(doc.key(addon).namespace)

    def relisting(self) -> None:
        self._sets.clear()
        self._selecting = ()
        self._clusters.clear()
        self._addons.clear()
        self._silent.clear()
        self._age += 1

    def listed(self, kind: Kind, key: Key, document: Document) -> None:
        """Add an existing object. Calls no callbacks, because all listed objects are reconciled anyway."""
        if kind == CLUSTER_SETS:
            self._note_set(key.name, managedclustersets.cluster_set(document))
        elif kind == ADDONS:
            self._note_addon(key, document)
        elif kind == MANAGED_CLUSTERS:
            self._note_silence(key.name, document)
            self._clusters[key.name] = self._membership(document)

    def changed(self, kind: Kind, key: Key, document: Document, change: ChangeType, actor: str) -> None:
        """Apply a change. `document` is the object after the change, or the deleted object."""
        del actor
        gone = change is ChangeType.DELETED
        if kind == CLUSTER_SETS:
            if self._note_set(key.name, None if gone else managedclustersets.cluster_set(document)):
                for callback in self.on_reach:
                    callback(key.name)
        elif kind == ADDONS:
            if self._note_addon(key, None if gone else document):
                for callback in self.on_addons:
                    callback(key.namespace)
        elif kind == MANAGED_CLUSTERS:
            self._note_silence(key.name, None if gone else document)
            self._move(key.name, None if gone else document)

    def _note_set(self, name: str, found: ClusterSet | None) -> bool:
        """Store a set (None: deleted). Returns whether it changed."""
        if self._sets.get(name) == found:
            return False
        self._age += 1
        if found is None:
            del self._sets[name]
        else:
            self._sets[name] = found
        self._selecting = tuple(each for each in self._sets.values() if not each.is_exclusive)
        return True

    def _note_addon(self, key: Key, addon: Document | None) -> bool:
        """Store an add-on (None: deleted). Returns whether the labels of its cluster have to change."""
        of_cluster = self._addons.setdefault(key.namespace, {})
        before = of_cluster.get(key.name, _AddOn())
        if addon is None:
            of_cluster.pop(key.name, None)
            if not of_cluster:
                del self._addons[key.namespace]
            return True
        now = _AddOn(addon_health.label_state(addon) or "", addon_health.silence_of(addon))
        of_cluster[key.name] = now
        return now.state != before.state

    def _note_silence(self, name: str, cluster: Document | None) -> None:
        reason = addon_health.reason_of(availability(cluster)) if cluster is not None else None
        if reason is None:
            self._silent.pop(name, None)
        else:
            self._silent[name] = reason

    def _move(self, name: str, cluster: Document | None) -> None:
        """Call `on_members` with each set that gained or lost a member."""
        before = self._clusters.pop(name, None)
        after = self._membership(cluster) if cluster is not None else None
        if after is not None:
            self._clusters[name] = after
        if before is not None and before.age != self._age:  # the selectors have changed since, so its former sets are unknown
            affected = frozenset(self._sets) | before.sets
        else:
            affected = (before.sets if before else frozenset()) ^ (after.sets if after else frozenset())
        for callback in self.on_members:
            for each in affected:
                callback(each)

    def _membership(self, cluster: Document) -> _Membership:
        labels = doc.labels(cluster)
        own = self._sets.get(labels.get(managedclustersets.LABEL, ""))
        named = (own.name,) if own is not None and own.is_exclusive else ()
        chosen = (each.name for each in self._selecting if each.has(labels))
        return _Membership(self._age, frozenset((*named, *chosen)))
