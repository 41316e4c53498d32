"""Every store answers in the order that is asked for, page by page, and counts by the values that are asked for."""

from collections import Counter
from random import Random

import pytest

from hub.domain.arranging import groups_of, sort_of
from hub.domain.asking import where_of
from hub.domain.change import MANAGED_CLUSTERS, Key, ObjectPage, Query
from hub.domain.selection import known_of, portion
from hub.ports import Store, Transaction
from machinery.clock import ManualClock
from machinery.identity import ClusterName
from machinery.selectors import parse_field_selector, parse_label_selector
from tests.contract.test_store_asking import beats_of, expression, fleet, put

SET = "cluster.open-cluster-management.io/clusterset"
ORDERS = (
    "version",
    "-version,name",
    "memory",
    "-cpu,-name",
    "nodes,set",
    'labels["tier"]',
    "-claims.region,available",
    "age",
    "-age",
    "lastBeat",
    "-lastBeat,version",
    "connected,agentVersion",
    "accepted,-claims.region,memory,name",
    ".metadata.creationTimestamp",
    ".status.capacity.memory",
)
GROUPS = ("version", "set,available", "accepted", "labels.tier", "claims.region,connected", 'taints["gpu"],addons["search"]')


def page(tx: Transaction, query: Query) -> ObjectPage:
    return tx.objects.find(MANAGED_CLUSTERS, query)


async def paged(store: Store, query: Query, text: str) -> list[str]:
    """The names on all pages, each page asked for where the one before it ended."""
    names: list[str] = []
    while True:
        found = await store.read(page, query)
        names += [item.key.name for item in found.items]
        if not found.more:
            return names
        assert len(found.items) == query.limit
        query = Query(where=query.where, limit=query.limit, after=found.items[-1].key, order=sort_of(text, found.place))


async def test_pages_in_an_order_are_the_whole_in_that_order(store: Store, clock: ManualClock) -> None:
    random = Random(7)
    documents = await fleet(store, clock, random, size=40)
    beats = await store.read(beats_of)
    everything = (await store.read(page, Query())).items
    assert len(everything) == len(documents)
    now = await store.read(lambda tx: tx.now)
    for text in ORDERS:
        for where in (None, where_of(expression(random), now)):
            query = Query(where=where, order=sort_of(text))
            expected = [item.key.name for item in portion(query, everything, beats).items]
            assert [item.key.name for item in (await store.read(page, query)).items] == expected, text
            limited = Query(where=where, order=sort_of(text), limit=7)
            assert await paged(store, limited, text) == expected, text


async def test_what_a_cluster_lacks_comes_last_whichever_way_the_order_goes(store: Store) -> None:
    for name, version in (("a", "v1.9.0"), ("b", ""), ("c", "v1.30.0"), ("d", "latest"), ("e", "v1.30.0")):
        status = {"version": {"kubernetes": version}}
        await store.run(put, {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {}, "status": status})
    for text, expected in (("version", "acebd"), ("-version", "ceabd"), ("-version,-name", "ecadb")):
        found = await store.read(page, Query(order=sort_of(text)))
        assert "".join(item.key.name for item in found.items) == expected


async def test_a_page_goes_on_though_the_object_that_ended_it_is_gone(store: Store) -> None:
    for name in "abcdef":
        status = {"capacity": {"memory": f"{ord(name)}Gi"}}
        await store.run(put, {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {}, "status": status})
    first = await store.read(page, Query(order=sort_of("memory"), limit=3))

    def remove(tx: Transaction) -> None:
        old = tx.objects.get(MANAGED_CLUSTERS, Key("", "c"))
        assert old is not None
        tx.objects.delete(MANAGED_CLUSTERS, old, "tester")

    await store.run(remove)
    rest = Query(order=sort_of("memory", first.place), after=first.items[-1].key)
    assert [item.key.name for item in (await store.read(page, rest)).items] == ["d", "e", "f"]


async def test_an_order_of_the_past_is_that_of_the_past(store: Store) -> None:
    for name, memory in (("a", "2Gi"), ("b", "1Gi")):
        status = {"capacity": {"memory": memory}}
        await store.run(put, {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {}, "status": status})

    def grow(tx: Transaction) -> list[str]:
        old = tx.objects.get(MANAGED_CLUSTERS, Key("", "b"))
        assert old is not None
        tx.objects.put(MANAGED_CLUSTERS, {**old.document, "status": {"capacity": {"memory": "4Gi"}}}, old, "tester")
        return [item.key.name for item in page(tx, Query(order=sort_of("memory"))).items]

    assert await store.run(grow) == ["a", "b"], "its own writes count"
    then = await store.read(page, Query(order=sort_of("memory"), at=2))
    assert [item.key.name for item in then.items] == ["b", "a"]


async def test_groups_count_every_chosen_cluster_once(store: Store, clock: ManualClock) -> None:
    random = Random(11)
    await fleet(store, clock, random, size=40)
    beats = await store.read(beats_of)
    everything = (await store.read(page, Query())).items
    now = await store.read(lambda tx: tx.now)
    for text in GROUPS:
        facets = groups_of(text)
        for where in (None, where_of(expression(random), now)):
            query = Query(where=where)
            chosen = portion(query, everything, beats).items
            known = (known_of(MANAGED_CLUSTERS, item.document, beats.get(ClusterName(item.key.name))) for item in chosen)
            expected = Counter(tuple(facet.text(one) for facet in facets) for one in known)
            assert await store.read(lambda tx, q, f: tx.objects.groups(q, f), query, facets) == expected, text


@pytest.mark.parametrize(
    "selector",
    [
        "status.conditions.ManagedClusterConditionAvailable!=True",
        "status.conditions.ManagedClusterConditionAvailable=",
        "status.conditions.Extra=True",
        "status.conditions.Extra!=",
        "status.clusterClaims.region!=edge-1",
        "status.clusterClaims.region=",
        "spec.taints.gpu=NoSelect",
        "spec.taints.gpu!=NoSelect,status.agentVersion=0.2.0",
        "status.version.kubernetes=v1.30.0,metadata.name!=edge-1-1",
        "metadata.name=west-3,status.agentVersion=",
    ],
)
async def test_fields_choose_as_they_do_in_memory(store: Store, clock: ManualClock, selector: str) -> None:
    await fleet(store, clock, Random(3), size=40)
    everything = (await store.read(page, Query())).items
    for labels in (
        "",
        "tier",
        "!tier",
        "tier in (region,edge-1)",
        f"{SET} notin (blue)",
    ):
        query = Query(fields=parse_field_selector(selector).requirements, labels=parse_label_selector(labels).requirements)
        expected = [item.key.name for item in portion(query, everything, {}).items]
        assert [item.key.name for item in (await store.read(page, query)).items] == expected, labels


async def test_clusters_of_one_moment_stand_by_their_names(store: Store) -> None:
    def several(tx: Transaction) -> None:
        for name in ("b", "a", "c"):
            put(tx, {"metadata": {"name": name, "uid": f"uid-{name}"}, "spec": {}})

    await store.run(several)
    for text in ("memory", "-memory", "accepted"):
        found = await store.read(page, Query(order=sort_of(text)))
        assert [item.key.name for item in found.items] == ["a", "b", "c"]
