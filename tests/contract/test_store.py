"""What every store promises about objects and their change log."""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from hub.domain.change import (
    ADDONS,
    LEASES,
    MANAGED_CLUSTERS,
    REQUESTS,
    Change,
    ChangeType,
    Key,
    ObjectPage,
    Query,
    StoredObject,
)
from hub.ports import Store, Transaction, Written
from machinery.clock import ManualClock
from machinery.errors import AlreadyExistsError, ConflictError, ExpiredError, UnavailableError
from machinery.selectors import Operator, Requirement
from tests.fakes.databases import Database

SOON = timedelta(seconds=10)


def cluster(name: str, *, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": name, "uid": f"uid-{name}"}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "ManagedCluster", "metadata": metadata, "spec": spec}


def put(tx: Transaction, document: dict[str, Any], actor: str = "tester") -> Written:
    """Creates or replaces, whatever is there."""
    old = tx.objects.get(MANAGED_CLUSTERS, Key("", document["metadata"]["name"]))
    return tx.objects.put(MANAGED_CLUSTERS, document, old, actor)


def remove(tx: Transaction, name: str) -> Written:
    old = tx.objects.get(MANAGED_CLUSTERS, Key("", name))
    assert old is not None
    return tx.objects.delete(MANAGED_CLUSTERS, old, "tester")


def get(tx: Transaction, name: str) -> StoredObject | None:
    return tx.objects.get(MANAGED_CLUSTERS, Key("", name))


def find(tx: Transaction, /, **query: Any) -> ObjectPage:
    return tx.objects.find(MANAGED_CLUSTERS, Query(**query))


def names(page: ObjectPage) -> list[str]:
    return [item.key.name for item in page.items]


def since(tx: Transaction, revision: int) -> Sequence[Change]:
    return tx.changes.since(revision)


async def test_object_is_stored_with_its_revision_in_the_bytes(store: Store) -> None:
    written = await store.run(put, cluster("a", hubAcceptsClient=False))
    stored = await store.read(get, "a")
    assert stored == written.stored
    assert stored is not None
    assert stored.revision == 1
    assert json.loads(stored.encoded)["metadata"] == {"name": "a", "uid": "uid-a", "resourceVersion": "1"}
    assert stored.document["spec"] == {"hubAcceptsClient": False}


async def test_result_of_a_write_exists_only_after_the_commit(store: Store) -> None:
    def peek(tx: Transaction) -> Written:
        written = put(tx, cluster("a"))
        with pytest.raises(RuntimeError):
            _ = written.stored
        return written

    assert (await store.run(peek)).stored.revision == 1


async def test_transaction_sees_its_own_writes(store: Store) -> None:
    await store.run(put, cluster("a", labels={"env": "prod"}))
    await store.run(put, cluster("z", labels={"env": "prod"}))

    def look(tx: Transaction) -> tuple[list[str], list[str], StoredObject | None]:
        put(tx, cluster("b", labels={"env": "prod"}))
        put(tx, cluster("a", labels={"env": "dev"}))
        remove(tx, "z")
        env = Requirement("env", Operator.EQUALS, ("prod",))
        return names(find(tx)), names(find(tx, labels=(env,))), get(tx, "z")

    assert await store.run(look) == (["a", "b"], ["b"], None)


async def test_failed_use_case_leaves_nothing_behind(store: Store) -> None:
    def fail(tx: Transaction) -> None:
        put(tx, cluster("a"))
        tx.facts.set("name", "value")
        raise ConflictError("changed my mind")

    with pytest.raises(ConflictError, match="changed my mind"):
        await store.run(fail)
    assert await store.read(get, "a") is None
    assert await store.read(lambda tx: (tx.changes.newest(), tx.facts.get("name"))) == (0, None)


async def test_unexpected_error_of_a_use_case_reaches_its_caller_and_only_it(store: Store) -> None:
    def fail(tx: Transaction) -> None:
        put(tx, cluster("bad"))
        raise ZeroDivisionError

    outcomes = await asyncio.gather(
        store.run(put, cluster("a")), store.run(fail), store.run(put, cluster("b")), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes][1] is ZeroDivisionError
    assert names(await store.read(find)) == ["a", "b"]


async def test_refused_use_case_leaves_nothing_behind_when_many_share_a_transaction(store: Store) -> None:
    def refuse(tx: Transaction, number: int) -> None:
        tx.facts.set(f"fact{number}", "left behind")
        raise ConflictError("changed my mind")

    def keep(tx: Transaction, number: int) -> None:
        tx.facts.set(f"fact{number}", "kept")

    work = (store.run(refuse if number % 3 else keep, number) for number in range(30))
    await asyncio.gather(*work, return_exceptions=True)
    facts = await store.read(lambda tx: [tx.facts.get(f"fact{number}") for number in range(30)])
    assert facts == [None if number % 3 else "kept" for number in range(30)]


async def test_query_cannot_write(store: Store) -> None:
    with pytest.raises(RuntimeError):
        await store.read(put, cluster("a"))


async def test_name_that_is_taken_is_refused(store: Store) -> None:
    await store.run(put, cluster("a"))
    with pytest.raises(AlreadyExistsError):
        await store.run(lambda tx: tx.objects.put(MANAGED_CLUSTERS, cluster("a"), None, "tester"))


async def test_stale_reader_cannot_overwrite_or_delete(store: Store) -> None:
    stale = (await store.run(put, cluster("a"))).stored
    fresh = (await store.run(put, cluster("a", hubAcceptsClient=True))).stored
    with pytest.raises(ConflictError, match="has been modified"):
        await store.run(lambda tx: tx.objects.put(MANAGED_CLUSTERS, cluster("a"), stale, "tester"))
    with pytest.raises(ConflictError, match="has been modified"):
        await store.run(lambda tx: tx.objects.delete(MANAGED_CLUSTERS, stale, "tester"))
    assert await store.read(get, "a") == fresh


async def test_gone_object_cannot_be_updated(store: Store) -> None:
    old = (await store.run(put, cluster("a"))).stored
    await store.run(remove, "a")
    with pytest.raises(ConflictError):
        await store.run(lambda tx: tx.objects.put(MANAGED_CLUSTERS, cluster("a"), old, "tester"))


async def test_no_update_is_lost_when_many_change_one_object(store: Store) -> None:
    await store.run(put, cluster("a", count=0))

    def increment(tx: Transaction) -> None:
        old = get(tx, "a")
        assert old is not None
        put(tx, cluster("a", count=old.document["spec"]["count"] + 1))

    await asyncio.gather(*(store.run(increment) for _ in range(40)))
    stored = await store.read(get, "a")
    assert stored is not None
    assert stored.document["spec"]["count"] == 40


async def test_revisions_are_gapless_and_in_the_order_of_the_log(store: Store) -> None:
    await asyncio.gather(*(store.run(put, cluster(f"c{number}")) for number in range(60)))
    log = await store.read(since, 0)
    assert [change.revision for change in log] == list(range(1, 61))
    stored = {item.key.name: item.revision for item in (await store.read(find)).items}
    assert stored == {change.key.name: change.revision for change in log}


async def test_object_written_twice_in_one_transaction_is_one_change(store: Store) -> None:
    def twice(tx: Transaction) -> Written:
        put(tx, cluster("a", step=1))
        return put(tx, cluster("a", step=2))

    written = await store.run(twice)
    assert [(change.type, change.revision) for change in await store.read(since, 0)] == [(ChangeType.ADDED, 1)]
    assert written.stored.document["spec"] == {"step": 2}


async def test_objects_may_come_and_go_within_one_transaction(store: Store) -> None:
    await store.run(put, cluster("old", labels={"a": "1"}))

    def change(tx: Transaction) -> None:
        put(tx, cluster("short"))
        remove(tx, "short")
        put(tx, cluster("old", labels={"a": "2"}))
        remove(tx, "old")
        put(tx, cluster("old", labels={"a": "3"}) | {"spec": {"again": True}})

    await store.run(change)
    log = await store.read(since, 1)
    assert [(change.key.name, change.type.value) for change in log] == [
        ("short", "ADDED"),
        ("short", "DELETED"),
        ("old", "MODIFIED"),
        ("old", "DELETED"),
        ("old", "ADDED"),
    ]
    third = Requirement("a", Operator.EQUALS, ("3",))
    assert names(await store.read(find, labels=(third,))) == ["old"]


async def test_what_is_read_ahead_is_what_would_be_read_one_by_one(store: Store) -> None:
    await store.run(put, cluster("old", step=1))
    await store.run(put, cluster("changed", step=1))

    def ahead(tx: Transaction) -> list[Any]:
        put(tx, cluster("changed", step=2))
        tx.objects.read_ahead(MANAGED_CLUSTERS, [Key("", name) for name in ("old", "changed", "absent")])
        tx.objects.read_ahead(ADDONS, [])
        found = [get(tx, name) for name in ("old", "changed", "absent")]
        put(tx, cluster("old", step=3))
        return [each and each.document["spec"] for each in [*found, get(tx, "old")]]

    assert await store.run(ahead) == [{"step": 1}, {"step": 2}, None, {"step": 3}]


async def test_labels_and_fields_go_with_their_object(store: Store) -> None:
    def request(labels: dict[str, str], signer: str) -> dict[str, Any]:
        return {"metadata": {"name": "a", "uid": "same", "labels": labels}, "spec": {"signerName": signer}}

    await store.run(lambda tx: tx.objects.put(REQUESTS, request({"a": "1", "b": "2"}, "example.com/x"), None, "tester"))

    def replace(tx: Transaction) -> None:
        old = tx.objects.get(REQUESTS, Key("", "a"))
        assert old is not None
        tx.objects.delete(REQUESTS, old, "tester")

    await store.run(replace)
    await store.run(lambda tx: tx.objects.put(REQUESTS, request({"c": "3"}, ""), None, "tester"))
    for gone in (
        Query(labels=(label("a", Operator.EXISTS),)),
        Query(fields=(label("spec.signerName", Operator.NOT_EQUALS, ""),)),
    ):
        assert names(await store.read(lambda tx, query: tx.objects.find(REQUESTS, query), gone)) == []


async def test_change_log_tells_document_actor_time_and_values_before(store: Store, clock: ManualClock) -> None:
    request = {"metadata": {"name": "r", "uid": "u"}, "spec": {"signerName": "example.com/a"}}
    await store.run(lambda tx: tx.objects.put(REQUESTS, request, None, "ann"))
    clock.advance(timedelta(seconds=5, microseconds=7))

    def change(tx: Transaction) -> None:
        old = tx.objects.get(REQUESTS, Key("", "r"))
        new = {"metadata": {"name": "r", "uid": "u", "labels": {"env": "prod"}}, "spec": {"signerName": "example.com/b"}}
        tx.objects.put(REQUESTS, new, old, "bob")

    await store.run(change)
    await store.run(lambda tx: tx.objects.delete(REQUESTS, tx.objects.get(REQUESTS, Key("", "r")), "eve"))  # type: ignore[arg-type]
    added, modified, deleted = await store.read(since, 0)
    assert (added.type, added.actor, added.labels_before, added.fields_before) == (ChangeType.ADDED, "ann", {}, {})
    assert (modified.type, modified.actor, modified.at) == (ChangeType.MODIFIED, "bob", clock.now())
    assert modified.labels_before == {}
    assert modified.fields_before["spec.signerName"] == "example.com/a"
    assert deleted.labels_before == {"env": "prod"}
    assert deleted.fields_before["spec.signerName"] == "example.com/b"
    last = json.loads(deleted.encoded)
    assert last["spec"] == {"signerName": "example.com/b"}
    assert last["metadata"]["resourceVersion"] == "3"


async def test_change_log_is_read_by_kind_and_in_portions(store: Store) -> None:
    for number in range(5):
        await store.run(put, cluster(f"c{number}"))
    lease = {"metadata": {"name": "l", "namespace": "c0", "uid": "l"}}
    await store.run(lambda tx: tx.objects.put(LEASES, lease, None, "tester"))
    assert [change.revision for change in await store.read(lambda tx: tx.changes.since(1, limit=2))] == [2, 3]
    assert [c.key for c in await store.read(lambda tx: tx.changes.since(0, kinds=(LEASES,)))] == [Key("c0", "l")]
    of_one = await store.read(lambda tx: tx.changes.since(0, kinds=(MANAGED_CLUSTERS,), namespace="", name="c3", limit=2))
    assert [change.key.name for change in of_one] == ["c3"]
    assert [c.key.name for c in await store.read(lambda tx: tx.changes.since(0, namespace="c0"))] == ["l"]


def label(name: str, operator: Operator, *values: str) -> Requirement:
    return Requirement(name, operator, values)


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (label("env", Operator.EQUALS, "prod"), ["p1", "p2"]),
        (label("env", Operator.NOT_EQUALS, "prod"), ["d1", "none"]),
        (label("env", Operator.IN, "prod", "dev"), ["d1", "p1", "p2"]),
        (label("env", Operator.NOT_IN, "prod", "dev"), ["none"]),
        (label("env", Operator.EXISTS), ["d1", "p1", "p2"]),
        (label("env", Operator.NOT_EXISTS), ["none"]),
        (label("empty", Operator.EQUALS, ""), ["p2"]),
    ],
)
async def test_label_selectors(store: Store, term: Requirement, expected: list[str]) -> None:
    await store.run(put, cluster("p1", labels={"env": "dev"}))
    await store.run(put, cluster("p1", labels={"env": "prod"}))
    await store.run(put, cluster("p2", labels={"env": "prod", "empty": ""}))
    await store.run(put, cluster("d1", labels={"env": "dev"}))
    await store.run(put, cluster("none"))
    await store.run(lambda tx: tx.objects.put(ADDONS, cluster("x", labels={"env": "prod"}), None, "tester"))
    assert names(await store.read(find, labels=(term,))) == expected


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (Requirement("metadata.name", Operator.EQUALS, ("a",)), ["a"]),
        (Requirement("metadata.name", Operator.NOT_EQUALS, ("a",)), ["b", "c"]),
        (Requirement("metadata.namespace", Operator.EQUALS, ("",)), ["a", "b", "c"]),
        (Requirement("spec.signerName", Operator.EQUALS, ("example.com/x",)), ["a"]),
        (Requirement("spec.signerName", Operator.NOT_EQUALS, ("example.com/x",)), ["b", "c"]),
        (Requirement("spec.signerName", Operator.EQUALS, ("",)), ["c"]),
        (Requirement("spec.signerName", Operator.NOT_EQUALS, ("",)), ["a", "b"]),
        (Requirement("spec.signerName", Operator.IN, ("example.com/x", "example.com/y")), ["a", "b"]),
    ],
)
async def test_field_selectors(store: Store, term: Requirement, expected: list[str]) -> None:
    def fill(tx: Transaction) -> None:
        for name, signer in (("a", "example.com/x"), ("b", "example.com/y"), ("c", "")):
            request = {"metadata": {"name": name, "uid": name}, "spec": {"signerName": signer}}
            tx.objects.put(REQUESTS, request, None, "tester")

    await store.run(fill)
    page = await store.read(lambda tx: tx.objects.find(REQUESTS, Query(fields=(term,))))
    assert names(page) == expected


async def test_namespaces_are_told_apart(store: Store) -> None:
    def fill(tx: Transaction) -> None:
        for namespace, name in (("b", "x"), ("a", "y"), ("a", "x")):
            document = {"metadata": {"namespace": namespace, "name": name, "uid": namespace + name}}
            tx.objects.put(ADDONS, document, None, "tester")

    await store.run(fill)
    everywhere = await store.read(lambda tx: tx.objects.find(ADDONS, Query()))
    one = await store.read(lambda tx: tx.objects.find(ADDONS, Query(namespace="a")))
    assert [item.key for item in everywhere.items] == [Key("a", "x"), Key("a", "y"), Key("b", "x")]
    assert names(one) == ["x", "y"]


async def test_pages_follow_the_keys_byte_by_byte(store: Store) -> None:
    keys = ["a", "a-b", "a.b", "a0", "ab", "b", "z-9"]
    for name in reversed(keys):
        await store.run(put, cluster(name))
    seen: list[str] = []
    after: Key | None = None
    for remaining in (4, 1, None):
        page = await store.read(find, limit=3, after=after)
        assert (page.remaining, page.more) == (remaining, remaining is not None)
        seen += names(page)
        after = page.items[-1].key
    assert seen == sorted(keys)


async def test_selected_page_does_not_count_what_remains(store: Store) -> None:
    for name in "abc":
        await store.run(put, cluster(name, labels={"env": "prod"}))
    page = await store.read(find, limit=2, labels=(label("env", Operator.EXISTS),))
    assert (names(page), page.more, page.remaining) == (["a", "b"], True, None)


async def test_list_as_of_an_earlier_revision(store: Store) -> None:
    await store.run(put, cluster("a", labels={"env": "prod"}))
    await store.run(put, cluster("b", labels={"env": "prod"}))
    await store.run(put, cluster("a", labels={"env": "dev"}))
    await store.run(remove, "b")
    await store.run(put, cluster("c", labels={"env": "prod"}))
    prod = (label("env", Operator.EQUALS, "prod"),)
    assert names(await store.read(find, at=2)) == ["a", "b"]
    assert names(await store.read(find, at=2, labels=prod)) == ["a", "b"]
    assert names(await store.read(find, at=3, labels=prod)) == ["b"]
    assert names(await store.read(find, at=4)) == ["a"]
    assert names(await store.read(find, at=5)) == ["a", "c"]
    page = await store.read(find, at=2, limit=1)
    assert (names(page), page.more, page.remaining, page.revision) == (["a"], True, 1, 2)
    assert names(await store.read(find, at=2, after=Key("", "a"))) == ["b"]


async def test_follower_sees_every_change_once_and_in_order(store: Store) -> None:
    for number in range(3):
        await store.run(put, cluster(f"early{number}"))
    seen: list[int] = []
    told_all = asyncio.Event()

    async def follow() -> None:
        async for changes in store.follow(1):
            if not changes:
                told_all.set()
            seen.extend(change.revision for change in changes)
            if seen and seen[-1] == 63:
                return

    following = asyncio.create_task(follow())
    async with asyncio.timeout(30):
        await told_all.wait()
        assert seen == [2, 3]
        await asyncio.gather(*(store.run(put, cluster(f"c{number}")) for number in range(60)))
        await following
    assert seen == list(range(2, 64))


async def test_follower_of_one_kind_hears_of_no_other(store: Store) -> None:
    lease = {"metadata": {"name": "l", "namespace": "a", "uid": "l"}}
    await store.run(put, cluster("a"))
    await store.run(lambda tx: tx.objects.put(LEASES, lease, None, "tester"))
    async with asyncio.timeout(10):
        async for changes in store.follow(0, kinds=(LEASES,)):
            assert [change.key for change in changes] == [Key("a", "l")]
            break


async def test_follower_from_a_forgotten_revision_is_refused(store: Store, clock: ManualClock) -> None:
    await store.run(put, cluster("a"))
    clock.advance(timedelta(hours=1))
    await store.run(lambda tx: tx.changes.compact(clock.now()))
    with pytest.raises(ExpiredError):
        async for _ in store.follow(0):
            pass


async def test_follower_from_a_revision_that_this_database_never_had_is_refused(store: Store) -> None:
    """It was restored, or another one took its place: what comes next is not what the follower believes."""
    await store.run(put, cluster("a"))
    with pytest.raises(ExpiredError):
        async for _ in store.follow(2):
            pass


async def test_waiting_ends_with_a_change_or_with_the_time(store: Store) -> None:
    assert await store.wait_for_change(0, timedelta(milliseconds=1)) == 0
    waiting = asyncio.create_task(store.wait_for_change(0, SOON))
    await store.run(put, cluster("a"))
    assert await waiting == 1
    assert await store.wait_for_change(0, SOON) == 1


async def test_cancelled_caller_leaves_its_use_case_done_or_undone(store: Store) -> None:
    def several(tx: Transaction, number: int) -> None:
        for part in "xyz":
            put(tx, cluster(f"c{number}-{part}"))

    tasks = [asyncio.create_task(store.run(several, number)) for number in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await store.run(put, cluster("last"))
    found = names(await store.read(find))
    for number in range(20):
        assert sum(name.startswith(f"c{number}-") for name in found) in ({0, 3} if number % 2 == 0 else {3})


async def test_restart_keeps_everything(database: Database, clock: ManualClock) -> None:
    async with database.opened(clock) as store:
        await store.run(put, cluster("a", labels={"env": "prod"}))
        await store.run(lambda tx: tx.facts.set("hub-id", "h"))
        before = await store.read(find)
    async with database.opened(clock) as store:
        assert await store.read(find) == before
        assert await store.read(lambda tx: tx.facts.get("hub-id")) == "h"
        assert (await store.run(put, cluster("b"))).stored.revision == 2
        async with asyncio.timeout(10):
            async for changes in store.follow(0):
                assert [change.key.name for change in changes] == ["a", "b"]
                break


async def test_closed_store_says_so(database: Database, clock: ManualClock) -> None:
    async with database.opened(clock) as store:
        await store.check()
        await store.close()
        await store.close()
        for asked in (store.check(), store.run(put, cluster("a")), store.read(find)):
            with pytest.raises(UnavailableError):
                await asked


async def test_what_was_not_written_for_long_is_found_in_the_order_of_its_writes(store: Store, clock: ManualClock) -> None:
    for name in ("a", "b", "c"):
        await store.run(put, cluster(name))
        clock.advance(timedelta(minutes=10))
    await store.run(put, cluster("a", leaseDurationSeconds=5))
    clock.advance(timedelta(seconds=1))
    await store.run(lambda tx: tx.changes.compact(tx.now))

    async def found(age: timedelta, limit: int = 10) -> list[str]:
        old = await store.read(lambda tx: tx.objects.written_before(MANAGED_CLUSTERS, tx.now - age, limit))
        return [key.name for key in old]

    assert await found(timedelta(minutes=5)) == ["b", "c"]
    assert await found(timedelta(minutes=5), limit=1) == ["b"]
    assert await found(timedelta(minutes=15)) == ["b"]
    assert list(await store.read(lambda tx: tx.objects.written_before(ADDONS, tx.now, 10))) == []


async def test_an_objects_own_changes_are_found_by_time_with_the_one_before_them(store: Store, clock: ManualClock) -> None:
    for size in range(1, 5):
        await store.run(put, cluster("a", size=size))
        await store.run(put, cluster("b", size=-size))
        clock.advance(timedelta(minutes=1))

    async def sizes(ago: timedelta) -> list[int]:
        found = await store.read(lambda tx: tx.changes.of(MANAGED_CLUSTERS, Key("", "a"), since=tx.now - ago))
        return [change.document["spec"]["size"] for change in found]

    assert await sizes(timedelta(days=1)) == [1, 2, 3, 4]
    assert await sizes(timedelta(minutes=2)) == [2, 3, 4]
    assert await sizes(timedelta(seconds=1)) == [4]
    assert await store.read(lambda tx: tx.changes.of(LEASES, Key("", "a"), since=tx.now - timedelta(days=1))) == []


async def test_objects_are_counted_by_the_values_of_a_field(store: Store) -> None:
    for name, version in (("a", "v1.30"), ("b", "v1.31"), ("c", "v1.31"), ("d", "")):
        document = {**cluster(name), "status": {"version": {"kubernetes": version}}}
        await store.run(put, document)
    await store.run(remove, "c")
    counted = await store.read(lambda tx: dict(tx.objects.tally(MANAGED_CLUSTERS, "status.version.kubernetes")))
    assert counted == {"v1.30": 1, "v1.31": 1, "": 1}
    assert await store.read(lambda tx: dict(tx.objects.tally(ADDONS, "status.version.kubernetes"))) == {}
    told = await store.read(lambda tx: dict(tx.objects.values(MANAGED_CLUSTERS, "status.version.kubernetes")))
    assert told == {Key("", "a"): "v1.30", Key("", "b"): "v1.31"}


async def test_objects_are_counted_by_a_query_with_what_the_transaction_has_written(store: Store) -> None:
    for name, region in (("a", "eu"), ("b", "us"), ("c", "eu")):
        await store.run(put, cluster(name, labels={"region": region}))
    eu = Query(labels=(Requirement("region", Operator.EQUALS, ("eu",)),), limit=1)
    no_us = Query(labels=(Requirement("region", Operator.NOT_IN, ("us",)),))

    def counted(tx: Transaction) -> list[int]:
        return [tx.objects.count(MANAGED_CLUSTERS, query) for query in (eu, no_us, Query(), Query(namespace="other"))]

    def counted_after_a_write(tx: Transaction) -> list[int]:
        put(tx, cluster("d", labels={"region": "eu"}))
        return counted(tx)

    assert await store.read(counted) == [2, 2, 3, 0]
    assert await store.run(counted_after_a_write) == [3, 3, 4, 0]
    assert await store.read(lambda tx: tx.objects.count(ADDONS, Query())) == 0


async def test_the_revision_at_an_instant_is_known_as_far_as_the_log_goes(store: Store, clock: ManualClock) -> None:
    for name in "abc":
        await store.run(put, cluster(name))
        clock.advance(timedelta(hours=1))

    async def position(ago: timedelta) -> int:
        return await store.read(lambda tx: tx.changes.position(tx.now - ago))

    assert await position(timedelta(days=1)) == 0
    assert [await position(timedelta(minutes=minutes)) for minutes in (190, 180, 130, 70, 0)] == [0, 1, 1, 2, 3]
    await store.run(lambda tx: tx.changes.compact(clock.now() - timedelta(minutes=90)))
    assert await position(timedelta(minutes=130)) == 1
    await store.run(lambda tx: tx.changes.forget(clock.now() - timedelta(minutes=90)))
    assert await position(timedelta(minutes=70)) == 2
    with pytest.raises(ExpiredError):
        await position(timedelta(minutes=130))


async def test_whether_there_is_any_object_of_a_kind_counts_what_the_transaction_has_written(store: Store) -> None:
    def coming_and_going(tx: Transaction) -> list[bool]:
        seen = [tx.objects.has_any(MANAGED_CLUSTERS)]
        put(tx, cluster("a"))
        seen.append(tx.objects.has_any(MANAGED_CLUSTERS))
        remove(tx, "a")
        return [*seen, tx.objects.has_any(MANAGED_CLUSTERS)]

    assert await store.run(coming_and_going) == [False, True, False]
    await store.run(put, cluster("b"))
    assert await store.read(lambda tx: tx.objects.has_any(MANAGED_CLUSTERS))
    assert not await store.read(lambda tx: tx.objects.has_any(ADDONS))
    await store.run(remove, "b")
    assert not await store.read(lambda tx: tx.objects.has_any(MANAGED_CLUSTERS))


async def test_looks_of_one_moment_are_each_answered_as_a_reading_is(store: Store) -> None:
    await store.run(put, cluster("a"))

    def broken(tx: Transaction) -> None:
        raise ConflictError(f"{len(find(tx).items)} there")

    found, page, refused = await asyncio.gather(
        store.look(get, "a"), store.look(find, limit=1), store.look(broken), return_exceptions=True
    )
    assert isinstance(found, StoredObject)
    assert isinstance(page, ObjectPage)
    assert (found.key.name, names(page), str(refused)) == ("a", ["a"], "1 there")
    await store.run(put, cluster("b"))
    assert await store.look(get, "b") is not None
