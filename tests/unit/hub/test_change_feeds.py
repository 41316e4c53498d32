"""The newest changes in memory, followers, queries that share a snapshot, the HTTPS door's feed and its revocation lists."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from structlog.testing import capture_logs

from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests import SERIAL_EXTRA, USAGES, requester_serial
from hub.api.managedclusteraddons.versions import add_on_stored
from hub.api.meta.change import MANAGED_CLUSTERS, REQUESTS, Change, Kind
from hub.grpc_door.registration.csr_follower import RECHECK, CSRFollower
from hub.grpc_door.session.changes import MAX_RECENT, ChangeSubscriptions
from hub.https_door.pages import MAX_AGE, READ_TIMEOUT as LISTS_PATIENCE, REFRESH_PERIOD, RevocationLists
from hub.https_door.storage.feed import BATCH, ChangeFeed
from hub.https_door.storage.storage import requester
from hub.ports import Transaction
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.kinds import write_paths
from hub.registry.managedclusteraddons.resource import MANAGED_CLUSTER_ADD_ON
from hub.registry.managedclusters import service as clusters
from hub.store.changelog import tail as tails
from hub.store.changelog.tail import Tail
from hub.store.writer.coalesced_reads import CoalescedReads
from machinery import pki
from machinery.apiserver.access import attributes
from machinery.apiserver.http.filters import Incoming
from machinery.apiserver.storage import Actor, GroupResource
from machinery.apiserver.write.metadata import FieldOwnership, with_managed_fields
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import SIGNER, AgentId, ClusterName, SerialNumber, agent_subject
from machinery.meta.objects import ChangeType, Key, Query, WatchEvent
from machinery.meta.selectors import Operator, Requirement, parse_field_selector
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import Clock, ManualClock
from machinery.wire.registration.v1 import registration_pb2 as wire
from tests.checks import present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import Newcomer
from tests.fakes.virtual_time import LoopClock, in_the_loops_time, in_virtual_time
from tests.unit.hub.test_revocation import TwoSigners

LONG = timedelta(days=1)
PATIENCE, LATER = timedelta(seconds=5), timedelta(hours=1)
BOOKMARK_AFTER = timedelta(milliseconds=20)
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBJECT = agent_subject(ClusterName("edge1"), AgentId("a"))
GROUP = "addon.open-cluster-management.io"
MINE = FieldOwnership(MANAGED_CLUSTER_ADD_ON.named(), "ann", f"{GROUP}/v1alpha1", "", "2026-01-01T00:00:00Z")


def change(revision: int, size: int = 0) -> Change:
    key = Key("", f"c{revision}")
    return Change(revision, datetime(2026, 1, 1, tzinfo=UTC), "a", MANAGED_CLUSTERS, key, ChangeType.ADDED, b"x" * size)


def revisions(changes: Sequence[Change] | None) -> list[int] | None:
    return None if changes is None else [each.revision for each in changes]


class Log:
    """A change log without changes that counts how often it is read."""

    def __init__(self) -> None:
        self.asked = 0

    async def fetch(self, _revision: int, _checked: int) -> tuple[Sequence[Change], int]:
        self.asked += 1
        return (), 0

    async def mend(self, _seen: int, _shown: Change | None) -> bool:
        return False


async def test_changes_that_follow_are_reported_at_once_and_memory_is_bounded() -> None:
    tail = Tail(Log().fetch, Log().mend, 5, LONG)
    tail.offer([change(6), change(7)])
    assert (tail.newest, revisions(tail.after(5)), revisions(tail.after(6)), revisions(tail.after(7))) == (7, [6, 7], [7], [])
    assert (revisions(tail.after(5, limit=1)), tail.after(4)) == ([6], None)
    tail.offer([change(7)])
    assert revisions(tail.after(5)) == [6, 7]
    tail = Tail(Log().fetch, Log().mend, 0, LONG)
    tail.offer([change(revision) for revision in range(1, tails.MAX_CHANGES + 11)])
    assert tail.after(9) is None
    assert len(tail.after(10, limit=10_000) or ()) == tails.MAX_CHANGES
    newest = tail.newest
    tail.offer([change(newest + 1, tails.MAX_BYTES), change(newest + 2, 1)])
    assert (tail.after(newest), revisions(tail.after(newest + 1))) == (None, [newest + 2])


def test_changes_behind_a_gap_wait_for_those_before_them() -> None:
    async def wait(compacted: int, *offered: int) -> tuple[int, list[int] | None, list[int] | None]:
        """What is newest and what follows 5 at first, and what follows it when the log of nine changes was read."""

        async def fetch(after: int, _checked: int) -> tuple[Sequence[Change] | None, int]:
            return None if after < compacted else [change(revision) for revision in range(after, 10)], 9

        tail = Tail(fetch, Log().mend, 5, timedelta(seconds=1))
        running = asyncio.create_task(tail.run())
        assert await tail.wait(4, LONG) == 5
        tail.offer([change(revision) for revision in offered])
        before = tail.newest, revisions(tail.after(5))
        assert await tail.wait(8, LONG) == 9
        running.cancel()
        return *before, revisions(tail.after(5))

    assert (in_virtual_time(wait(0, 8)), in_virtual_time(wait(7, 6))) == ((5, [], [6, 7, 8, 9]), (6, [6], None))


def test_lost_changes_are_noticed_whatever_this_replica_commits_before_it_looks() -> None:
    async def newest_after(survivors: int, *batches: Sequence[int]) -> int:
        log, repaired = [change(revision) for revision in range(1, 6)], list[int]()

        async def fetch(revision: int, checked: int) -> tuple[Sequence[Change] | None, int]:
            shown = [each for each in log if each.revision >= revision or each.revision == checked]
            return (None, 100) if repaired else (shown if log[-1].revision >= revision else (), log[-1].revision)

        async def mend(seen: int, shown: Change | None) -> bool:
            repaired.extend(() if shown in log else (seen,))
            return bool(repaired)

        tail = Tail(fetch, mend, 0, timedelta(seconds=1))
        tail.offer(tuple(log))
        running = asyncio.create_task(tail.run())
        await asyncio.sleep(2)
        log[survivors:] = [change(revision, size=1) for revision in range(survivors + 1, batches[-1][-1] + 1)]
        for batch in batches:
            tail.offer([each for each in log if each.revision in batch])
        newest = await tail.wait(99, timedelta(seconds=10))
        running.cancel()
        return newest

    for survivors, *batches in ((3, (4,)), (4, (5, 6)), (4, (5,), (6,)), (3, (4, 5, 6)), (3, (6,)), (3, (5, 6))):
        assert in_virtual_time(newest_after(survivors, *batches)) == 100, (survivors, batches)


def test_poll_is_ten_times_rarer_where_notifications_arrive() -> None:
    async def looks(*, notified: bool) -> int:
        log = Log()
        running = asyncio.create_task(Tail(log.fetch, log.mend, 0, timedelta(milliseconds=500), lambda: notified).run())
        await asyncio.sleep(20)
        running.cancel()
        return log.asked

    assert abs(in_virtual_time(looks(notified=False)) - 40) <= 1
    assert abs(in_virtual_time(looks(notified=True)) - 4) <= 1


def test_a_defect_of_the_log_is_reported_once_and_ends_nothing() -> None:
    async def looked() -> list[MutableMapping[str, Any]]:
        asked = 0

        async def broken(_revision: int, _checked: int) -> tuple[Sequence[Change], int]:
            nonlocal asked
            asked += 1
            raise RuntimeError("a row that nobody can read" if asked < 10 else "another row")

        with capture_logs() as lines:
            running = asyncio.create_task(Tail(broken, Log().mend, 0, timedelta(seconds=1)).run())
            await asyncio.sleep(20)
            running.cancel()
        assert asked > 10
        return lines

    lines = in_virtual_time(looked())
    assert [(line["error"], line["log_level"]) for line in lines] == [
        ("a row that nobody can read", "error"),
        ("another row", "error"),
    ]


async def news(woken: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE.total_seconds()):
        await woken.wait()
    woken.clear()


@pytest.fixture
def name(newcomer: Newcomer) -> str:
    return newcomer.submit(newcomer.accepted())


@asynccontextmanager
async def running_feed(feed: ChangeSubscriptions) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(feed.run())
        yield
        task.cancel()


async def test_feed_wakes_who_waits_for_an_object_and_keeps_the_newest_change_of_a_request(
    store: InlineStore, newcomer: Newcomer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed, woken, other = ChangeSubscriptions(store), asyncio.Event(), asyncio.Event()
    with feed.subscribe(REQUESTS, name, woken.set), feed.subscribe(REQUESTS, "another", other.set):
        async with running_feed(feed):
            await news(woken)  # the feed begins, so that only the store knows
            assert feed.newest(name) is None
            await news(other)
            newcomer.approve(name)
            await news(woken)
            first = present(feed.newest(name))
            newcomer.issue(name)
            await news(woken)
            newest = present(feed.newest(name))
            assert "certificate" not in first.document["status"]
            assert newest.revision > first.revision
            assert newest.document["status"]["certificate"]
            assert not other.is_set()
            monkeypatch.setattr("hub.store.changelog.tail.MAX_CHANGES", 0)
            newcomer.store.transact(lambda tx: requests.remove(tx, requests.find(tx, name), "ann"))
            store.transact(lambda tx: tx.changes.compact(tx.now + LATER))
            await news(woken)
            assert feed.newest(name) is None, "changes that are compacted already"
    assert not feed._waiting


async def test_change_that_is_old_deleted_or_in_doubt_is_not_recent(store: InlineStore, name: str) -> None:
    feed, seen = ChangeSubscriptions(store), store.transact(lambda tx: tx.changes.since(0))[-1]
    await feed._take([seen])
    assert feed.newest(name) is seen
    await feed._take([replace(seen, revision=seen.revision + 1, type=ChangeType.DELETED)])
    assert feed.newest(name) is None
    await feed._take([replace(seen, revision=seen.revision + 2)])
    await feed._sync()
    assert feed.newest(name) is None
    for number in range(MAX_RECENT + 1):
        await feed._take([replace(seen, revision=seen.revision + 3 + number, key=Key("", f"request-{number}"))])
    assert feed.newest("request-0") is None
    assert feed.newest("request-1") is not None


class Call:
    """A call of a peer that may read everything."""

    shown = b"certificate"

    def seat(self, _flow: str) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def opened(self, *, offered: bool) -> None:
        pass


def test_stream_of_a_request_never_goes_back_and_reads_the_store_after_a_pause(
    store: InlineStore, newcomer: Newcomer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked = store.read, asyncio.Queue[float]()

    async def counted(*args: Any) -> Any:
        asked.put_nowait(asyncio.get_running_loop().time())
        return await read(*args)

    monkeypatch.setattr(store, "read", counted)

    async def followed() -> None:
        feed = ChangeSubscriptions(store)
        record = newcomer.bootstrap()

        async def identify(_shown: bytes) -> CertificateRecord:
            return record

        gate, peers = SimpleNamespace(closed=False), SimpleNamespace(listen=lambda _wake: None, identify=identify)
        parts: Any = SimpleNamespace(store=store, feed=feed, gate=gate, peers=peers, clock=ManualClock())
        call: Any = Call()
        began = asyncio.get_running_loop().time()
        (submitted,) = [each for each in store.transact(lambda tx: tx.changes.since(0)) if each.key.name == name]
        await feed._take([submitted])
        states = CSRFollower(parts).follow(name, call, lambda *_, **__: None)
        assert (await anext(states)).state == wire.FollowRequestResponse.STATE_PENDING
        assert asked.empty()
        newcomer.approve(name)  # the feed does not know of it
        assert (await anext(states)).state == wire.FollowRequestResponse.STATE_APPROVED
        assert await asked.get() - began == RECHECK.total_seconds()
        following = asyncio.ensure_future(anext(states))
        await feed._take([submitted])  # late
        await asked.get()
        newcomer.issue(name)
        await feed._take(store.transact(lambda tx: tx.changes.since(tx.changes.newest() - 1)))
        assert (await following).state == wire.FollowRequestResponse.STATE_ISSUED
        assert asked.empty()

    in_virtual_time(followed())


class Database(InlineStore):
    """A store that counts snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.snapshots, self.asked, self.answers = 0, asyncio.Event(), asyncio.Event()
        self.answers.set()

    async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        self.snapshots += 1
        self.asked.set()
        await self.answers.wait()
        return await super().read(query, *args, **kwargs)


@pytest.fixture
def database() -> Database:
    return Database()


@pytest.fixture
def looks(database: Database) -> CoalescedReads:
    return CoalescedReads(database.read)


async def all_of(*asked: Awaitable[str]) -> list[str | BaseException]:
    return list(await asyncio.gather(*asked, return_exceptions=True))


def says(word: str) -> Callable[[Transaction], str]:
    return lambda _tx: word


def raises(error: Exception) -> Callable[[Transaction], str]:
    def refuse(_tx: Transaction) -> str:
        raise error

    return refuse


async def test_queries_of_one_moment_share_a_snapshot_and_each_has_its_own_answer(
    database: Database, looks: CoalescedReads
) -> None:
    assert (await all_of(*(looks.join(says(word)) for word in "abc")), database.snapshots) == (["a", "b", "c"], 1)
    refused, broken = InvalidError("no"), ZeroDivisionError()
    assert await all_of(looks.join(says("a")), looks.join(raises(refused)), looks.join(says("c"))) == ["a", refused, "c"]
    assert database.snapshots == 2
    # On PostgreSQL a statement that fails ends the transaction of all.
    assert await all_of(looks.join(says("a")), looks.join(raises(broken)), looks.join(says("c"))) == ["a", broken, "c"]
    database.failure, before = UnavailableError("away"), database.snapshots
    assert await all_of(*(looks.join(says(word)) for word in "abc")) == [database.failure] * 3
    assert database.snapshots == before + 1


async def test_look_during_another_one_sees_what_was_committed_before_it(database: Database, looks: CoalescedReads) -> None:
    database.answers.clear()
    early = asyncio.create_task(looks.join(says("early")))
    await database.asked.wait()
    late = asyncio.create_task(looks.join(says("late")))
    database.answers.set()
    assert (await all_of(early, late), database.snapshots) == (["early", "late"], 2)


async def test_canceled_look_is_not_asked_for_and_keeps_nobody_from_answers(database: Database, looks: CoalescedReads) -> None:
    gone, here = asyncio.create_task(looks.join(says("gone"))), asyncio.create_task(looks.join(says("here")))
    await asyncio.sleep(0)
    gone.cancel()
    assert await here == "here"
    database.answers.clear()
    database.asked.clear()
    leaving, staying = (asyncio.create_task(looks.join(says(word))) for word in ("leaving", "staying"))
    await database.asked.wait()
    leaving.cancel()
    await asyncio.wait({leaving})
    database.answers.set()
    assert await staying == "staying"
    assert gone.cancelled()
    assert leaving.cancelled()


def join(store: InlineStore, name: str) -> None:
    store.transact(clusters.put, {"metadata": {"name": name}, "spec": {}}, None, "test")


class MeddlingStore(InlineStore):
    """Runs `meddle` before each look into the log, and lets the feed see what came of it."""

    def __init__(self) -> None:
        super().__init__()
        self.meddle: Callable[[], None] = lambda: None
        self.second_follow = asyncio.Event()

    async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        if query.__module__ == "hub.https_door.storage.feed" and query.__name__ == "_since":
            self.meddle()
            await asyncio.sleep(0.02)
        return await super().read(query, *args, **kwargs)

    async def follow(self, after: int, kinds: Collection[Kind] | None = None) -> AsyncIterator[Sequence[Change]]:
        self.second_follow.set()
        async for batch in super().follow(after, kinds):
            yield batch


@asynccontextmanager
async def following(store: InlineStore, *, queue: int = 10) -> AsyncIterator[ChangeFeed]:
    feed = ChangeFeed(store, queue=queue)
    task = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def names(feed: ChangeFeed, after: int, count: int) -> list[str]:
    """The first `count` names, and whatever else comes before it is quiet again and again."""
    reported: list[str] = []
    quiet, watching = 0, feed.watch(MANAGED_CLUSTERS, Query(), after=after, bookmark_after=BOOKMARK_AFTER)
    async with asyncio.timeout(5), aclosing(watching) as events:
        async for event in events:
            if isinstance(event, WatchEvent):
                reported.append(event.stored.key.name)
            elif len(reported) >= count:
                quiet += 1
            if quiet > 1:
                break
    return reported


async def test_a_change_that_the_log_and_the_feed_both_show_is_sent_once() -> None:
    store = MeddlingStore()
    join(store, "a")
    join(store, "b")
    later = ["c"]
    store.meddle = lambda: join(store, later.pop()) if later else None
    async with following(store) as feed:
        assert await names(feed, 1, 2) == ["b", "c"]


async def test_a_watcher_that_falls_behind_while_it_reads_the_log_misses_nothing() -> None:
    store = MeddlingStore()
    join(store, "a")
    crowd = [f"c{number}" for number in range(12)]

    def meddle() -> None:
        while crowd:
            join(store, crowd.pop(0))

    store.meddle = meddle
    async with following(store, queue=3) as feed:
        assert await names(feed, 0, 13) == ["a", *(f"c{number}" for number in range(12))]


class Counting(Requirement):
    looks: ClassVar[list[Mapping[str, str]]] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        self.looks.append(labels)
        return super().matches(labels)


def test_watchers_with_the_same_selection_are_one_audience_and_share_what_they_see() -> None:
    seen: list[WatchEvent] = []

    async def watch(feed: ChangeFeed, query: Query) -> None:
        async with aclosing(feed.watch(MANAGED_CLUSTERS, query, after=0, bookmark_after=timedelta(seconds=5))) as events:
            async for event in events:
                if isinstance(event, WatchEvent):
                    seen.append(event)
                    return

    async def play() -> None:
        store = InlineStore()
        async with following(store) as feed, asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(watch(feed, Query(labels=(Counting("absent", Operator.NOT_EXISTS),))))
            for _ in range(50):
                group.create_task(watch(feed, Query()))
            await asyncio.sleep(0.05)
            Counting.looks.clear()
            join(store, "a")

    in_virtual_time(play())
    assert (len(seen), len({id(event) for event in seen}), len(Counting.looks)) == (100, 1, 1)


async def test_who_watches_one_object_reads_nobody_elses_changes_from_the_log() -> None:
    store = MeddlingStore()
    for number in range(BATCH + 1):
        join(store, f"c{number}")
    looks = 0

    def meddle() -> None:
        nonlocal looks
        looks += 1

    store.meddle = meddle
    one = Query(fields=parse_field_selector("metadata.name=c7"))
    async with asyncio.timeout(5), following(store) as feed:
        await store.second_follow.wait()
        async with aclosing(feed.watch(MANAGED_CLUSTERS, one, after=0, bookmark_after=BOOKMARK_AFTER)) as events:
            first, quiet = await anext(events), await anext(events)
    assert isinstance(first, WatchEvent)
    assert (first.stored.key.name, quiet, looks) == ("c7", BATCH + 1, 1)


class HangingStore(InlineStore):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.hangs = False
        self.asked = 0

    async def read(self, query: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(10 * MAX_AGE)
        return await super().read(query, *args, **kwargs)


async def nobody_else(_incoming: Incoming) -> web.StreamResponse:
    raise AssertionError("these paths are answered here")


async def asked(lists: RevocationLists) -> str:
    request = make_mocked_request("GET", "/crl")
    incoming = Incoming(request, "audit", attributes("GET", request.path, request.query), 0.0)
    try:
        answer = await lists(incoming, nobody_else)
    except UnavailableError as error:
        return error.reason
    assert isinstance(answer, web.Response)
    return str(answer.text)


@in_the_loops_time
async def test_while_the_database_hangs_the_last_lists_are_served_for_a_while_and_nobody_waits_for_others() -> None:
    clock = LoopClock(asyncio.get_running_loop())
    store = HangingStore(clock)
    store.hangs = True
    lists = RevocationLists(store, TwoSigners(), clock)
    async with asyncio.timeout(LISTS_PATIENCE + REFRESH_PERIOD):
        answers = await asyncio.gather(*(asked(lists) for _ in range(20)))
    assert (set(answers), store.asked) == ({"ServiceUnavailable"}, 1)
    store.hangs = False
    await asyncio.sleep(2 * REFRESH_PERIOD)
    first = await asked(lists)
    assert len(json.loads(first)["lists"]) == 2
    store.hangs = True
    await asyncio.sleep(2 * REFRESH_PERIOD)
    assert await asked(lists) == first
    await asyncio.sleep(MAX_AGE)
    assert await asked(lists) == "ServiceUnavailable"
    store.hangs = False
    await asyncio.sleep(2 * REFRESH_PERIOD)
    assert await asked(lists) == first


def test_only_the_certificate_that_an_agent_came_with_is_noted() -> None:
    spec = {"request": b64encode(pki.build_request(SUBJECT, pki.generate_key())).decode(), "signerName": SIGNER}
    request = {"metadata": {"name": "r"}, "spec": {**spec, "usages": list(USAGES)}}
    for purpose, noted in ((Purpose.AGENT, 0xABC), (Purpose.OPERATOR, None), (None, None)):
        holder = purpose and CertificateRecord(SerialNumber(0xABC), purpose, "somebody", (), NOW, NOW, "", NOW)
        actor = Actor("somebody", extra={SERIAL_EXTRA: ("def",), "other": ("kept",)}, holder=holder)
        put = write_paths(GROUP_SUFFIX)[GroupResource("certificates.k8s.io", "certificatesigningrequests")].put
        document = InlineStore(ManualClock()).transact(put, request, None, requester(actor)).stored.document
        assert requester_serial(document) == noted, purpose
        assert document["spec"]["extra"]["other"] == ["kept"]


def stored_after(config: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    document, holdings = MINE.applied(config, old, force=False)
    stored = {**add_on_stored(document), "apiVersion": f"{GROUP}/v1beta1"}
    return with_managed_fields({**stored, "metadata": {**stored["metadata"], "uid": "u", "resourceVersion": "5"}}, holdings)


def test_an_add_on_that_is_applied_again_stays_as_it_is() -> None:
    metadata = {"name": "logs", "namespace": "edge1"}
    for spec in ({}, {"installNamespace": "logging"}):
        config = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "ManagedClusterAddOn", "metadata": metadata, "spec": spec}
        first = stored_after(config, None)
        assert stored_after(config, first) == first
        document, _ = MINE.applied(config, first, force=False)
        assert document["spec"]["installNamespace"] == spec.get("installNamespace", "open-cluster-management-agent-addon")
