"""What OCM's tests of its hub ask beside what others of ours say: clusters that wait or end, empty labels, keys of nothing."""

from datetime import timedelta

from hub.controllers.addon_tokens import AddOnTokens
from hub.controllers.batch import TOGETHER
from hub.controllers.cluster_profiles import ClusterProfiles, ProfiledNamespaces
from hub.controllers.cluster_sets import ClusterSets
from hub.controllers.default_set import DefaultSet
from hub.controllers.managed_namespaces import ManagedNamespaces
from hub.controllers.set_bindings import SetBindings
from hub.domain import cluster as cluster_rules
from hub.domain import clusterset
from hub.domain import document as doc
from hub.domain.change import MANAGED_CLUSTERS, Key
from hub.services import clusters, heartbeats
from machinery.conditions import AVAILABLE, UNKNOWN
from machinery.identity import ClusterName
from tests.fakes.fleetwork import Fleetwork, cluster, put, remove
from tests.unit.hub.controllers.conftest import Hub

WINDOW = timedelta(seconds=1)


async def test_a_cluster_that_waits_costs_no_write(hub: Hub) -> None:
    hub.join("c1")
    before = hub.revision
    await Fleetwork(hub.store, cluster_profiles=True).start()
    assert hub.revision == before


async def test_an_empty_label_is_no_set(hub: Hub) -> None:
    await Fleetwork(hub.store, default_cluster_set=True).start()
    for number, label in enumerate(("", "default", "other")):
        document = {**cluster(f"c{number}"), "metadata": {"name": f"c{number}", "labels": {clusterset.LABEL: label}}}
        hub.store.transact(put, MANAGED_CLUSTERS, document)
    labels = [doc.labels(hub.cluster(f"c{number}"))[clusterset.LABEL] for number in range(3)]
    assert labels == ["default", "default", "other"]


async def test_a_cluster_that_is_being_deleted_and_falls_silent_reads_unknown(hub: Hub) -> None:
    hub.store.transact(put, MANAGED_CLUSTERS, doc.with_metadata(cluster("c1"), finalizers=["example.com/hold"]))
    hub.store.transact(clusters.set_condition, ClusterName("c1"), cluster_rules.ACCEPTED, "admin")
    hub.store.transact(remove, MANAGED_CLUSTERS, "c1")
    since = hub.clock.now()
    hub.clock.advance(timedelta(seconds=301))
    hub.store.transact(heartbeats.expire, ClusterName("c1"), window=WINDOW, since=since, actor="test")
    found = hub.condition("c1", AVAILABLE)
    assert found is not None
    assert found.status == UNKNOWN


async def test_keys_of_nothing_are_passed_over(hub: Hub) -> None:
    nothing = Key("nowhere", "nobody")
    told: list[object] = []
    for batched in (DefaultSet(hub.store), ManagedNamespaces(hub.store, tuple), ClusterProfiles(hub.store)):
        batched.wants("nobody")
        assert await batched.reconcile(TOGETHER) is None
    assert await ClusterSets(hub.store).reconcile("nobody") is None
    assert await SetBindings(hub.store, lambda _key: None).reconcile(nothing) is None
    assert await SetBindings(hub.store, lambda _key: None).reconcile(Key("", "nobody")) is None
    assert await AddOnTokens(hub.store, told.append).reconcile(nothing) is None
    assert await ProfiledNamespaces(hub.store, told.append).reconcile(nothing) is None
    assert (hub.revision, told) == (0, [])
