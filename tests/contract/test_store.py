"""What every store promises about objects and their change log."""

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from hub.api.meta.change import ADDONS, LEASES, MANAGED_CLUSTERS, REQUESTS, Change
from hub.ports import Store, Transaction, Written
from machinery.errors import AlreadyExistsError, ConflictError, ExpiredError, UnavailableError
from machinery.meta.objects import ChangeType, Key, Page, Query, StoredObject
from machinery.meta.selectors import Operator, Requirement
from machinery.runtime.clock import ManualClock
from tests.checks import check_refusal_of, present
from tests.fakes.databases import SqlDatabase

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
    return tx.objects.delete(MANAGED_CLUSTERS, present(tx.objects.get(MANAGED_CLUSTERS, Key("", name))), "tester")


def get(tx: Transaction, name: str) -> StoredObject | None:
    return tx.objects.get(MANAGED_CLUSTERS, Key("", name))


def find(tx: Transaction, /, **query: Any) -> Page:
    return tx.objects.find(MANAGED_CLUSTERS, Query(**query))


def names(page: Page) -> list[str]:
    return [item.key.name for item in page.items]


def since(tx: Transaction, revision: int) -> Sequence[Change]:
    return tx.changes.since(revision)


async def test_object_is_created_updated_and_deleted_by_who_has_seen_its_newest_revision(store: Store) -> None:
    def create(tx: Transaction) -> Written:
        written = put(tx, cluster("a", hubAcceptsClient=False))
        with pytest.raises(RuntimeError):
            _ = written.stored
        return written

    async def refused(error: type[Exception], use_case: Callable[[Transaction], object]) -> None:
        await check_refusal_of(error, store.run(use_case))

    await check_refusal_of(RuntimeError, store.read(create))
    stale = (await store.run(create)).stored
    assert (await store.read(get, "a"), stale.revision) == (stale, 1)
    assert json.loads(stale.encoded)["metadata"] == {"name": "a", "uid": "uid-a", "resourceVersion": "1"}
    assert stale.document["spec"] == {"hubAcceptsClient": False}
    await refused(AlreadyExistsError, lambda tx: tx.objects.put(MANAGED_CLUSTERS, cluster("a"), None, "tester"))
    fresh = (await store.run(put, cluster("a", hubAcceptsClient=True))).stored
    await refused(ConflictError, lambda tx: tx.objects.put(MANAGED_CLUSTERS, cluster("a"), stale, "tester"))
    await refused(ConflictError, lambda tx: tx.objects.delete(MANAGED_CLUSTERS, stale, "tester"))
    assert await store.read(get, "a") == fresh
    await store.run(remove, "a")
    await refused(ConflictError, lambda tx: tx.objects.put(MANAGED_CLUSTERS, cluster("a"), fresh, "tester"))


async def test_transaction_sees_its_own_writes(store: Store) -> None:
    await store.run(put, cluster("a", labels={"env": "prod"}))
    await store.run(put, cluster("z", labels={"env": "prod"}))

    def look(tx: Transaction) -> tuple[list[str], list[str], StoredObject | None]:
        put(tx, cluster("b", labels={"env": "prod"}))
        put(tx, cluster("a", labels={"env": "dev"}))
        remove(tx, "z")
        return names(find(tx)), names(find(tx, labels=(Requirement("env", Operator.EQUALS, ("prod",)),))), get(tx, "z")

    assert await store.run(look) == (["a", "b"], ["b"], None)


async def test_failed_use_case_leaves_nothing_behind_and_fails_no_other(store: Store) -> None:
    def work(tx: Transaction, number: int, error: Exception | None) -> None:
        put(tx, cluster(f"c{number:02}"))
        tx.facts.set(f"fact{number}", "kept")
        if error is not None:
            raise error

    for error in (ConflictError("changed my mind"), ZeroDivisionError()):
        await check_refusal_of(type(error), store.run(work, 0, error))
    assert await store.read(lambda tx: (get(tx, "c00"), tx.changes.newest(), tx.facts.get("fact0"))) == (None, 0, None)

    for error in (ConflictError("changed my mind"), ZeroDivisionError()):
        outcomes = await asyncio.gather(
            *(store.run(work, number, error if number % 3 else None) for number in range(30)), return_exceptions=True
        )
        assert [type(each) for each in outcomes] == [type(error) if number % 3 else type(None) for number in range(30)]
        facts = await store.read(lambda tx: [tx.facts.get(f"fact{number}") for number in range(30)])
        assert facts == [None if number % 3 else "kept" for number in range(30)]
        assert names(await store.read(find)) == [f"c{number:02}" for number in range(0, 30, 3)]


async def test_concurrent_writes_lose_no_update_and_have_gapless_revisions_in_the_order_of_the_log(store: Store) -> None:
    def increment(tx: Transaction) -> None:
        old = get(tx, "a")
        put(tx, cluster("a", count=1 + (old.document["spec"]["count"] if old else 0)))

    await asyncio.gather(*(store.run(increment) for _ in range(40)))
    stored = present(await store.read(get, "a"))
    assert stored.document["spec"]["count"] == stored.revision == 40
    await asyncio.gather(*(store.run(put, cluster(f"c{number}")) for number in range(60)))
    log = await store.read(since, 0)
    assert [change.revision for change in log] == list(range(1, 101))
    revisions = {item.key.name: item.revision for item in (await store.read(find)).items}
    assert revisions == {change.key.name: change.revision for change in log}


async def test_changes_of_one_transaction_are_logged_in_order_and_an_object_written_twice_is_one_change(store: Store) -> None:
    def twice(tx: Transaction) -> Written:
        put(tx, cluster("old", labels={"a": "1"}, step=1))
        return put(tx, cluster("old", labels={"a": "1"}, step=2))

    def change(tx: Transaction) -> None:
        put(tx, cluster("short"))
        remove(tx, "short")
        put(tx, cluster("old", labels={"a": "2"}))
        remove(tx, "old")
        put(tx, cluster("old", labels={"a": "3"}) | {"spec": {"again": True}})

    assert (await store.run(twice)).stored.document["spec"] == {"step": 2}
    await store.run(change)
    assert [(change.key.name, change.type.value, change.revision) for change in await store.read(since, 0)] == [
        *(("old", "ADDED", 1), ("short", "ADDED", 2), ("short", "DELETED", 3), ("old", "MODIFIED", 4)),
        *(("old", "DELETED", 5), ("old", "ADDED", 6)),
    ]
    assert names(await store.read(find, labels=(Requirement("a", Operator.EQUALS, ("3",)),))) == ["old"]


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

    await store.run(lambda tx: tx.objects.delete(REQUESTS, present(tx.objects.get(REQUESTS, Key("", "a"))), "tester"))
    await store.run(lambda tx: tx.objects.put(REQUESTS, request({"c": "3"}, ""), None, "tester"))
    labels, fields = (label("a", Operator.EXISTS),), (label("spec.signerName", Operator.NOT_EQUALS, ""),)
    for gone in (Query(labels=labels), Query(fields=fields)):
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
    assert (modified.labels_before, modified.fields_before["spec.signerName"]) == ({}, "example.com/a")
    assert (deleted.labels_before, deleted.fields_before["spec.signerName"]) == ({"env": "prod"}, "example.com/b")
    last = json.loads(deleted.encoded)
    assert (last["spec"], last["metadata"]["resourceVersion"]) == ({"signerName": "example.com/b"}, "3")


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


async def test_objects_are_selected_by_labels_fields_and_namespace(store: Store) -> None:
    def fill(tx: Transaction) -> None:
        labelled = (("p1", {"env": "prod"}), ("p2", {"env": "prod", "empty": ""}), ("d1", {"env": "dev"}), ("none", None))
        for name, labels in labelled:
            put(tx, cluster(name, labels=labels))
        for name, signer in (("a", "example.com/x"), ("b", "example.com/y"), ("c", "")):
            tx.objects.put(REQUESTS, {"metadata": {"name": name, "uid": name}, "spec": {"signerName": signer}}, None, "tester")
        for namespace, name in (("b", "x"), ("a", "y"), ("a", "x")):
            metadata = {"namespace": namespace, "name": name, "uid": namespace + name, "labels": {"env": "prod"}}
            tx.objects.put(ADDONS, {"metadata": metadata}, None, "tester")

    await store.run(put, cluster("p1", labels={"env": "dev"}))
    await store.run(fill)
    signer, x, y = "spec.signerName", "example.com/x", "example.com/y"
    table = (
        (MANAGED_CLUSTERS, "labels", label("env", Operator.EQUALS, "prod"), ["p1", "p2"]),
        (MANAGED_CLUSTERS, "labels", label("env", Operator.NOT_EQUALS, "prod"), ["d1", "none"]),
        (MANAGED_CLUSTERS, "labels", label("env", Operator.IN, "prod", "dev"), ["d1", "p1", "p2"]),
        (MANAGED_CLUSTERS, "labels", label("env", Operator.NOT_IN, "prod", "dev"), ["none"]),
        (MANAGED_CLUSTERS, "labels", label("env", Operator.EXISTS), ["d1", "p1", "p2"]),
        (MANAGED_CLUSTERS, "labels", label("env", Operator.NOT_EXISTS), ["none"]),
        (MANAGED_CLUSTERS, "labels", label("empty", Operator.EQUALS, ""), ["p2"]),
        (REQUESTS, "fields", label("metadata.name", Operator.EQUALS, "a"), ["a"]),
        (REQUESTS, "fields", label("metadata.name", Operator.NOT_EQUALS, "a"), ["b", "c"]),
        (REQUESTS, "fields", label("metadata.namespace", Operator.EQUALS, ""), ["a", "b", "c"]),
        (REQUESTS, "fields", label(signer, Operator.EQUALS, x), ["a"]),
        (REQUESTS, "fields", label(signer, Operator.NOT_EQUALS, x), ["b", "c"]),
        (REQUESTS, "fields", label(signer, Operator.EQUALS, ""), ["c"]),
        (REQUESTS, "fields", label(signer, Operator.NOT_EQUALS, ""), ["a", "b"]),
        (REQUESTS, "fields", label(signer, Operator.IN, x, y), ["a", "b"]),
    )

    def query(which: str, term: Requirement) -> Query:
        return Query(labels=(term,)) if which == "labels" else Query(fields=(term,))

    found = [
        names(await store.read(lambda tx, kind, query: tx.objects.find(kind, query), kind, query(which, term)))
        for kind, which, term, _ in table
    ]
    assert [(row, got) for row, got in zip(table, found, strict=True) if got != row[-1]] == []
    everywhere = await store.read(lambda tx: tx.objects.find(ADDONS, Query()))
    assert [item.key for item in everywhere.items] == [Key("a", "x"), Key("a", "y"), Key("b", "x")]
    assert names(await store.read(lambda tx: tx.objects.find(ADDONS, Query(namespace="a")))) == ["x", "y"]


async def test_pages_follow_the_keys_byte_by_byte_and_count_what_remains_unless_selected(store: Store) -> None:
    keys = ["a", "a-b", "a.b", "a0", "ab", "b", "z-9"]
    for name in reversed(keys):
        await store.run(put, cluster(name, labels={"env": "prod"}))
    seen: list[str] = []
    after: Key | None = None
    for remaining in (4, 1, None):
        page = await store.read(find, limit=3, after=after)
        assert (page.remaining, page.after is not None) == (remaining, remaining is not None)
        seen += names(page)
        after = page.items[-1].key
    assert seen == sorted(keys)
    page = await store.read(find, limit=2, labels=(label("env", Operator.EXISTS),))
    assert (names(page), page.after is not None, page.remaining) == (["a", "a-b"], True, None)


async def test_follower_sees_every_change_once_and_in_order(store: Store) -> None:
    for number in range(3):
        await store.run(put, cluster(f"early{number}"))
    seen: list[int] = []
    read_all = asyncio.Event()

    async def follow() -> None:
        async for changes in store.follow(1):
            if not changes:
                read_all.set()
            seen.extend(change.revision for change in changes)
            if seen and seen[-1] == 63:
                return

    following = asyncio.create_task(follow())
    async with asyncio.timeout(30):
        await read_all.wait()
        assert seen == [2, 3]
        await asyncio.gather(*(store.run(put, cluster(f"c{number}")) for number in range(60)))
        await following
    assert seen == list(range(2, 64))


async def test_follower_gets_its_kinds_alone_and_no_forgotten_or_unknown_revision(store: Store, clock: ManualClock) -> None:
    lease = {"metadata": {"name": "l", "namespace": "a", "uid": "l"}}
    await store.run(put, cluster("a"))
    await store.run(lambda tx: tx.objects.put(LEASES, lease, None, "tester"))
    assert [change.key for change in await anext(store.follow(0, kinds=(LEASES,)))] == [Key("a", "l")]
    clock.advance(timedelta(hours=1))
    await store.run(lambda tx: tx.changes.compact(clock.now()))
    for revision in (0, 3):
        await check_refusal_of(ExpiredError, anext(store.follow(revision)))


async def test_waiting_ends_with_a_change_or_with_the_time(store: Store) -> None:
    assert await store.wait_for_change(0, timedelta(milliseconds=1)) == 0
    waiting = asyncio.create_task(store.wait_for_change(0, SOON))
    await store.run(put, cluster("a"))
    assert (await waiting, await store.wait_for_change(0, SOON)) == (1, 1)


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


async def test_restart_keeps_everything(database: SqlDatabase, clock: ManualClock) -> None:
    async with database.opened(clock) as store:
        await store.run(put, cluster("a", labels={"env": "prod"}))
        await store.run(lambda tx: tx.facts.set("hub-id", "h"))
        before = await store.read(find)
    async with database.opened(clock) as store:
        assert (await store.read(find), await store.read(lambda tx: tx.facts.get("hub-id"))) == (before, "h")
        assert (await store.run(put, cluster("b"))).stored.revision == 2
        assert [change.key.name for change in await anext(store.follow(0))] == ["a", "b"]


async def test_closed_store_says_so(database: SqlDatabase, clock: ManualClock) -> None:
    async with database.opened(clock) as store:
        await store.check()
        await store.close()
        await store.close()
        for asked in (store.check(), store.run(put, cluster("a")), store.read(find)):
            await check_refusal_of(UnavailableError, asked)


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

    assert (await found(timedelta(minutes=5)), await found(timedelta(minutes=5), limit=1)) == (["b", "c"], ["b"])
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

    assert (await sizes(timedelta(days=1)), await sizes(timedelta(minutes=2))) == ([1, 2, 3, 4], [2, 3, 4])
    assert await sizes(timedelta(seconds=1)) == [4]
    assert await store.read(lambda tx: tx.changes.of(LEASES, Key("", "a"), since=tx.now - timedelta(days=1))) == []


async def test_objects_are_counted_with_what_the_transaction_has_written(store: Store) -> None:
    version, no_us = "status.version.kubernetes", Query(labels=(label("region", Operator.NOT_IN, "us"),))
    eu = Query(labels=(label("region", Operator.EQUALS, "eu"),), limit=1)

    def counted(tx: Transaction) -> list[int]:
        return [tx.objects.count(MANAGED_CLUSTERS, query) for query in (eu, no_us, Query(), Query(namespace="other"))]

    def counted_after_a_write(tx: Transaction) -> list[int]:
        put(tx, cluster("e", labels={"region": "eu"}))
        return counted(tx)

    def coming_and_going(tx: Transaction) -> list[bool]:
        seen = [tx.objects.has_any(MANAGED_CLUSTERS)]
        put(tx, cluster("a"))
        seen.append(tx.objects.has_any(MANAGED_CLUSTERS))
        remove(tx, "a")
        return [*seen, tx.objects.has_any(MANAGED_CLUSTERS)]

    assert await store.run(coming_and_going) == [False, True, False]
    for name, runs, region in (("a", "v1.30", "eu"), ("b", "v1.31", "us"), ("c", "v1.31", "eu"), ("d", "", "eu")):
        await store.run(put, cluster(name, labels={"region": region}) | {"status": {"version": {"kubernetes": runs}}})
    await store.run(remove, "c")
    assert await store.read(lambda tx: dict(tx.objects.tally(MANAGED_CLUSTERS, version))) == {"v1.30": 1, "v1.31": 1, "": 1}
    values = await store.read(lambda tx: dict(tx.objects.values(MANAGED_CLUSTERS, version)))
    assert values == {Key("", "a"): "v1.30", Key("", "b"): "v1.31"}
    assert (await store.read(counted), await store.run(counted_after_a_write)) == ([2, 2, 3, 0], [3, 3, 4, 0])
    assert await store.read(lambda tx: tx.objects.has_any(MANAGED_CLUSTERS))
    assert await store.read(lambda tx: (dict(tx.objects.tally(ADDONS, version)), tx.objects.count(ADDONS, Query()))) == ({}, 0)
    assert not await store.read(lambda tx: tx.objects.has_any(ADDONS))
    for name in "abde":
        await store.run(remove, name)
    assert not await store.read(lambda tx: tx.objects.has_any(MANAGED_CLUSTERS))


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
    await check_refusal_of(ExpiredError, position(timedelta(minutes=130)))


async def test_looks_of_one_moment_are_each_answered_as_a_reading_is(store: Store) -> None:
    await store.run(put, cluster("a"))

    def broken(tx: Transaction) -> None:
        raise ConflictError(f"{len(find(tx).items)} there")

    found, page, refused = await asyncio.gather(
        store.look(get, "a"), store.look(find, limit=1), store.look(broken), return_exceptions=True
    )
    assert isinstance(found, StoredObject)
    assert isinstance(page, Page)
    assert (found.key.name, names(page), str(refused)) == ("a", ["a"], "1 there")
    await store.run(put, cluster("b"))
    assert await store.look(get, "b") is not None
