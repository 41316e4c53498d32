"""The HTTPS door: its change feed, what it stores of a write, and how it behaves under load and while it drains."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from hub.api.certificates import CertificateRecord, Purpose
from hub.api.certificatesigningrequests.request import SERIAL_EXTRA, USAGES, requester_serial
from hub.api.managedclusteraddons.versions import add_on_stored
from hub.api.meta.change import MANAGED_CLUSTERS, Change, Kind
from hub.https_door.pages import FRESH, KEPT, RevocationLists
from hub.https_door.pages import PATIENCE as LISTS_PATIENCE
from hub.https_door.storage.feed import BATCH, ChangeFeed
from hub.https_door.storage.storage import requester
from hub.registry.kinds import write_paths
from hub.registry.managedclusteraddons.resource import MANAGED_CLUSTER_ADD_ON
from hub.registry.managedclusters import service as clusters
from machinery import pki
from machinery.apiserver.access import attributes
from machinery.apiserver.http.filters import Incoming
from machinery.apiserver.storage import Actor, GroupResource
from machinery.apiserver.write.metadata import FieldOwnership, with_holdings
from machinery.errors import UnavailableError
from machinery.identity import SIGNER, AgentId, ClusterName, SerialNumber, agent_subject
from machinery.meta.objects import Query, WatchEvent
from machinery.meta.selectors import Operator, Requirement, parse_field_selector
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import Clock, ManualClock
from tests.fakes.inline_store import InlineStore
from tests.fakes.virtual_time import LoopClock, in_virtual_time
from tests.unit.hub.test_revocation import TwoSigners

PATIENCE = timedelta(milliseconds=20)


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
    told: list[str] = []
    quiet = 0
    watching = feed.watch(MANAGED_CLUSTERS, Query(), after=after, patience=PATIENCE)
    async with asyncio.timeout(5), aclosing(watching) as events:
        async for event in events:
            if isinstance(event, WatchEvent):
                told.append(event.stored.key.name)
            elif len(told) >= count:
                quiet += 1
            if quiet > 1:
                break
    return told


async def test_a_change_that_the_log_and_the_feed_both_tell_is_told_once() -> None:
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
        watching = feed.watch(MANAGED_CLUSTERS, query, after=0, patience=timedelta(seconds=5))
        async with aclosing(watching) as events:
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
    assert len(seen) == 100
    assert len({id(event) for event in seen}) == 1
    assert len(Counting.looks) == 1


async def test_who_watches_one_object_reads_nobody_elses_changes_from_the_log() -> None:
    store = MeddlingStore()
    for number in range(BATCH + 1):
        join(store, f"c{number}")
    looks = 0

    def meddle() -> None:
        nonlocal looks
        looks += 1

    store.meddle = meddle
    one = Query(fields=parse_field_selector("metadata.name=c7").requirements)
    async with asyncio.timeout(5), following(store) as feed:
        await store.second_follow.wait()
        async with aclosing(feed.watch(MANAGED_CLUSTERS, one, after=0, patience=PATIENCE)) as events:
            first, quiet = await anext(events), await anext(events)
    assert isinstance(first, WatchEvent)
    assert (first.stored.key.name, quiet, looks) == ("c7", BATCH + 1, 1)


CALLERS = 20


class HangingStore(InlineStore):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.hangs = False
        self.asked = 0

    async def read(self, query: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        if self.hangs:
            await asyncio.sleep(10 * KEPT)
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


def test_while_the_database_hangs_the_last_lists_are_served_for_a_while_and_nobody_waits_for_others() -> None:
    async def scenario() -> None:
        clock = LoopClock(asyncio.get_running_loop())
        store = HangingStore(clock)
        store.hangs = True
        lists = RevocationLists(store, TwoSigners(), clock)
        async with asyncio.timeout(LISTS_PATIENCE + FRESH):
            said = await asyncio.gather(*(asked(lists) for _ in range(CALLERS)))
        assert set(said) == {"ServiceUnavailable"}
        assert store.asked == 1
        store.hangs = False
        await asyncio.sleep(2 * FRESH)
        first = await asked(lists)
        assert len(json.loads(first)["lists"]) == 2
        store.hangs = True
        await asyncio.sleep(2 * FRESH)
        assert await asked(lists) == first
        await asyncio.sleep(KEPT)
        assert await asked(lists) == "ServiceUnavailable"
        store.hangs = False
        await asyncio.sleep(2 * FRESH)
        assert await asked(lists) == first

    in_virtual_time(scenario())


REQUESTS = GroupResource("certificates.k8s.io", "certificatesigningrequests")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBJECT = agent_subject(ClusterName("edge1"), AgentId("a"))


def test_only_the_certificate_that_an_agent_came_with_is_noted() -> None:
    spec = {"request": b64encode(pki.build_request(SUBJECT, pki.generate_key())).decode(), "signerName": SIGNER}
    request = {"metadata": {"name": "r"}, "spec": {**spec, "usages": list(USAGES)}}
    for purpose, noted in ((Purpose.AGENT, 0xABC), (Purpose.OPERATOR, None), (None, None)):
        holder = purpose and CertificateRecord(SerialNumber(0xABC), purpose, "somebody", (), NOW, NOW, "", NOW)
        actor = Actor("somebody", extra={SERIAL_EXTRA: ("def",), "other": ("kept",)}, holder=holder)
        put = write_paths(GROUP_SUFFIX)[REQUESTS].put
        document = InlineStore(ManualClock()).transact(put, request, None, requester(actor)).stored.document
        assert requester_serial(document) == noted, purpose
        assert document["spec"]["extra"]["other"] == ["kept"]


GROUP = "addon.open-cluster-management.io"
RESOURCE = MANAGED_CLUSTER_ADD_ON.named()
MINE = FieldOwnership(RESOURCE, "ann", f"{GROUP}/v1alpha1", "", "2026-01-01T00:00:00Z")


def stored_after(config: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    document, holdings = MINE.applied(config, old, force=False)
    stored = {**add_on_stored(document), "apiVersion": f"{GROUP}/v1beta1"}
    return with_holdings({**stored, "metadata": {**stored["metadata"], "uid": "u", "resourceVersion": "5"}}, holdings)


def test_an_add_on_that_is_applied_again_stays_as_it_is() -> None:
    metadata = {"name": "logs", "namespace": "edge1"}
    for spec in ({}, {"installNamespace": "logging"}):
        config = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "ManagedClusterAddOn", "metadata": metadata, "spec": spec}
        first = stored_after(config, None)
        assert stored_after(config, first) == first
        document, _ = MINE.applied(config, first, force=False)
        assert document["spec"]["installNamespace"] == spec.get("installNamespace", "open-cluster-management-agent-addon")
