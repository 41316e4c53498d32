"""Metrics, the log level that an operator sets, and each fault once in the log."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from hub.access.peers import Peers
from hub.access.rbac_cache import RBACCache
from hub.access.tokens import BootstrapTokens
from hub.api.auditrecords import AuditEntry
from hub.api.certificateauthorities.authority import AgentTrust
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.hubreplicas import LogLevelOrder, Replica
from hub.api.liveness import BrakeLimits
from hub.api.managedclusters import cluster as rules
from hub.api.managedclusters.availability import silence_condition
from hub.api.managedclusters.cluster import JoinRequest, StatusReport, joining_document
from hub.api.meta import document as doc
from hub.api.meta.change import MANAGED_CLUSTERS, Change
from hub.audit.trail import Trail
from hub.grpc_door.session.changes import ChangeSubscriptions as StreamFeed
from hub.grpc_door.session.report_writer import Clocks
from hub.grpc_door.session.sessions import Sessions
from hub.grpc_door.session.trust_bundle_push import TrustBundlePush
from hub.heartbeat import BeatBuffer, HeartbeatCoverage
from hub.https_door.callers.authentication import AuthenticationConfig, AuthenticatorChain
from hub.https_door.storage.feed import ChangeFeed
from hub.https_door.storage.storage import ServiceStorage
from hub.metrics import fleet as of_fleet
from hub.metrics.doors import OTHER, bounded
from hub.metrics.fleet import EVERY, FleetSnapshots, add_fleet, counted, minor
from hub.ports import BACKUP_MADE, Transaction
from hub.registry.hubreplicas import service as verbosity
from hub.registry.liveness import brake
from hub.registry.managedclusters import service as clusters
from hub.replica.admin_kubeconfig import AdminKubeconfig
from hub.replica.heartbeat import ReplicaHeartbeat
from hub.store.changelog.tail import Tail
from machinery.apiserver.access import Attributes
from machinery.apiserver.http.filters import Incoming, RequestCounts
from machinery.errors import UnavailableError
from machinery.identity import AgentId, ClusterName, HubId, SerialNumber
from machinery.lifecycle.server import LifecycleSignals
from machinery.meta.conditions import Condition
from machinery.meta.timestamps import format_micro_time
from machinery.observability.metrics import Registry
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import ManualClock
from machinery.runtime.informer import Informer
from tests.checks import check_each, check_refusal_of, check_results, present
from tests.fakes.audit_records import MemorySink, record
from tests.fakes.fleetwork import builder_of
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import EDGE, Newcomer, change_cluster, fresh_store
from tests.fakes.virtual_time import in_virtual_time
from tests.unit.hub.test_beat_buffer import Acks
from tests.unit.hub.test_sessions import Open

WORDS = ("full", "full", "away", "away", "", "away")
FOLLOWERS = ("full", "away")  # a follower that has caught up reads no more: its store has the changes in memory
LONG_ENOUGH = 12  # seconds; longer than any of them pauses
AGENT = AgentId("xk7pq")


@dataclass
class Case:
    """`again`: the event after the fault. `wanted`: gives it something to do. `errors`: the fields with WORDS."""

    run: Coroutine[Any, Any, None]
    trouble: str
    again: str = ""
    wanted: Callable[[], object] = lambda: None
    errors: Sequence[str] = ("full", "away", "away")


def presence(store: InlineStore, clock: ManualClock) -> Case:
    me = Replica("one", "home", "first", "1", "grpc", "https", clock.now(), clock.now())
    return Case(ReplicaHeartbeat(store, me, LifecycleSignals(clock), clock).run(), "this replica cannot update its row")


def clocks(store: InlineStore, _clock: ManualClock) -> Case:
    subject = Clocks(store, timedelta())
    return Case(subject.run(), "clock skews of agents cannot be stored", wanted=lambda: subject.note(EDGE, timedelta()))


def beats(store: InlineStore, clock: ManualClock) -> Case:
    subject = BeatBuffer(store, clock, timedelta(seconds=1))
    message, again = "heartbeats cannot be stored and are not acknowledged", "heartbeats are stored again"
    return Case(subject.run(), message, again, lambda: subject.hold(EDGE, 1, Acks(), available=True))


def records(store: InlineStore, clock: ManualClock) -> Case:
    class Sink(MemorySink):
        async def write(self, entries: Sequence[AuditEntry]) -> None:
            await store.run(lambda _tx: None)
            await super().write(entries)

    trail = Trail(Sink(), clock, capacity=100, batch=10, window=timedelta(milliseconds=5))
    message, again = "audit records cannot be written now", "audit records are written again"
    return Case(trail.run(), message, again, lambda: trail.offer(record(1)))


def log_of_changes(store: InlineStore, _clock: ManualClock) -> Case:
    async def mend(_seen: int, _shown: Change | None) -> bool:
        return False

    return Case(
        Tail(lambda _revision, _checked: store.read(lambda _tx: ((), 0)), mend, 0, timedelta(seconds=1)).run(),
        "change log cannot be read",
    )


def trust(store: InlineStore, clock: ManualClock) -> Case:
    now = clock.now()
    came = CertificateRecord(SerialNumber(1), Purpose.AGENT, "u", (), now, now, "k", now, cluster=EDGE, agent=AgentId("a"))
    subject, numbers = TrustBundlePush(store, lambda: b""), count()
    message = "trusted CAs of agents cannot be stored"
    return Case(subject.run(), message, wanted=lambda: subject.note(came, frozenset({f"{next(numbers)}"})))


def admin_file(store: InlineStore, clock: ManualClock) -> Case:
    class Kept(AdminKubeconfig):
        async def keep(self) -> Path:
            return await store.read(lambda _tx: Path())

    none: Any = None
    subject = Kept(none, store, none, none, lifetimes=none, clock=clock)
    return Case(subject.run(), "admin kubeconfig cannot be updated now", wanted=subject.look)


def accounts(store: InlineStore, clock: ManualClock) -> Case:
    feed, none = ChangeFeed(store), cast("Any", None)
    objects = ServiceStorage(store, feed, GROUP_SUFFIX)
    subject = AuthenticatorChain(store, objects, feed, HubId("hub"), AuthenticationConfig(none), clock=clock)
    return Case(subject.run(), "deleted ServiceAccounts cannot be seen now", errors=FOLLOWERS)


def followed(
    store: InlineStore, run: Coroutine[Any, Any, None], trouble: str = "the change log cannot be followed now"
) -> Case:
    """Each look changes an object, even while the store is unavailable."""
    names = (f"c{number}" for number in count())
    return Case(run, trouble, wanted=lambda: store.ask(partial(made, name=next(names))), errors=FOLLOWERS)


def made(tx: Transaction, name: str) -> None:
    clusters.put(tx, {"metadata": {"name": name}}, None, "admin")


def controllers_of(store: InlineStore) -> Informer[Change]:
    builder = builder_of(store)
    builder.watch(MANAGED_CLUSTERS, lambda _key: None)
    return builder.informer(asyncio.Event())


OTHERS = ("sessions of other replicas cannot be read", "sessions of other replicas are read again")
SILENCES = "clusters are not declared silent: heartbeats cannot be stored"
EVERYBODY: tuple[Callable[[InlineStore, ManualClock], Case], ...] = (
    lambda store, clock: Case(Peers(store, clock).run(), "revocations cannot be read", "revocations are read again"),
    lambda store, _: Case(BootstrapTokens(store).run(), "revoked bootstrap credentials cannot be read"),
    lambda store, clock: Case(RBACCache(store, clock).run(), "the RBAC cache cannot be compared with the database"),
    lambda store, _: Case(Sessions(store, "one").follow_others(), *OTHERS),
    lambda store, clock: Case(HeartbeatCoverage(store, clock, "one", lambda: True).run(), SILENCES),
    lambda store, clock: followed(store, RBACCache(store, clock).run()),
    lambda store, _: followed(store, controllers_of(store).run()),
    lambda store, _: followed(store, StreamFeed(store).run()),
    lambda store, _: followed(store, ChangeFeed(store).run()),
    *(presence, clocks, beats, records, log_of_changes, trust, admin_file, accounts),
)


def test_every_background_task_logs_each_trouble_once_and_its_end() -> None:
    def check(made: Callable[[InlineStore, ManualClock], Case]) -> None:
        lines, case = logged(made, WORDS)
        assert [line["error"] for line in lines if line["event"] == case.trouble] == list(case.errors), lines
        assert [line["log_level"] for line in lines if line["event"] == case.again] == ["info"] * bool(case.again), lines

    check_each(check, [(made,) for made in EVERYBODY])


def test_it_is_reported_when_open_sessions_are_written_down_again() -> None:
    def ours(store: InlineStore, _clock: ManualClock) -> Case:
        sessions = Sessions(store, "one")
        return Case(sessions.run(), "open sessions cannot be stored", wanted=lambda: sessions.add(Open("a")))

    lines, case = logged(ours, ("", "full", "full", "away", "", ""))
    assert [line["event"] for line in lines] == [case.trouble, case.trouble, "open sessions are stored again"]


def logged(made: Callable[[InlineStore, ManualClock], Case], words: Sequence[str]) -> tuple[Sequence[Mapping[str, Any]], Case]:
    """Its lines while the store fails with each of these words; "" is none."""

    async def run() -> tuple[Sequence[Mapping[str, Any]], Case]:
        clock = ManualClock()
        store = fresh_store(clock)
        case = made(store, clock)
        running = asyncio.create_task(case.run)
        with capture_logs() as lines:
            for word in words:
                store.failure = UnavailableError(word) if word else None
                case.wanted()
                await asyncio.sleep(LONG_ENOUGH)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return lines, case

    return in_virtual_time(run())


class Asked(InlineStore):
    reads = 0

    async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        self.reads += 1
        return await super().read(query, *args, **kwargs)


def put_trust(cluster: str, ends: timedelta, tx: Transaction) -> None:
    tx.trusts.put(AgentTrust(ClusterName(cluster), AGENT, None, SerialNumber(7), tx.now, tx.now + ends, "", tx.now))


def test_versions_of_clusters_become_a_bounded_number_of_minor_versions() -> None:
    rows = (
        *(("v1.30.2+k3s1", "1.30"), ("1.31.0-eks-abc", "1.31"), ("v1.32", "1.32")),
        *(("v1.3022", OTHER), ("latest", OTHER), ('1"} evil 1\n', OTHER)),
    )
    check_results(minor, rows)
    found = bounded({f"v{number}": 1 for number in range(500)} | {"v0": 40}, most=3)
    assert (len(found), found["v0"], found[OTHER]) == (4, 40, 497)
    assert bounded({OTHER: 5, "a": 3, "b": 1}, most=2) == {OTHER: 6, "a": 3}


def test_fleet_is_counted_by_state_and_lifetime_and_clusters_on_demand(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.accepted()
    store.transact(clusters.report_status, EDGE, StatusReport(conditions=(rules.AVAILABLE,)), "agent")
    waiting = joining_document(JoinRequest(ClusterName("waits"), "uid-2", AGENT), timedelta(seconds=60))
    store.transact(lambda tx: clusters.put(tx, waiting, None, "ann"))
    for name, ends in (("a", -1), ("b", 20), ("c", 24 * 6), ("d", 24 * 29), ("e", 24 * 300), ("f", 24 * 301)):
        store.transact(lambda tx, name, ends: put_trust(name, timedelta(hours=ends), tx), name, ends)
    fleet = store.transact(counted)
    assert fleet[of_fleet.CLUSTERS] == {"available": 1, "unavailable": 0, "unknown": 0, "other_hub": 0, "never_heard_of": 1}
    assert fleet[of_fleet.ACCEPTED] == {"true": 1, "false": 1}
    assert fleet[of_fleet.CERTIFICATES] == {"ended": 1, "1d": 1, "7d": 1, "30d": 1, "more": 2}
    now = store.transact(lambda tx: tx.now).timestamp()
    assert (fleet[of_fleet.SEEN], fleet[of_fleet.EARLIEST]) == (now, now + 20 * 3600)
    assert [fleet.get(metric) for metric in (of_fleet.CLUSTER, of_fleet.EXPIRY, of_fleet.BACKUP)] == [None] * 3
    store.transact(clusters.report_status, EDGE, StatusReport(conditions=(rules.UNAVAILABLE,)), "agent")
    store.transact(lambda tx: put_trust(EDGE, timedelta(days=1), tx))
    store.transact(lambda tx: tx.facts.set(BACKUP_MADE, format_micro_time(tx.now)))
    fleet = store.transact(counted, detailed=True)
    assert fleet[of_fleet.CRITICAL] == {}
    critical = {"alert.open-cluster-management.io/critical": "true"}
    change_cluster(store, lambda cluster: doc.with_metadata(cluster, labels=critical))
    assert (store.transact(counted)[of_fleet.CRITICAL], fleet[of_fleet.CLUSTER]) == ({EDGE: 0}, {EDGE: 0})
    assert (cast("Any", fleet[of_fleet.EXPIRY])[EDGE], fleet[of_fleet.BACKUP]) == (now + 86400, now)


def test_a_cluster_whose_agent_uses_another_hub_is_not_counted_as_silent(newcomer: Newcomer, store: InlineStore) -> None:
    newcomer.accepted()
    critical = {"alert.open-cluster-management.io/critical": "true"}
    change_cluster(store, lambda cluster: doc.with_metadata(cluster, labels=critical))
    now = store.transact(lambda tx: tx.now)
    for owner, unknown, parted in (("hub-b", 0, 1), (None, 1, 0)):
        change_cluster(store, partial(doc.with_status_condition, condition=silence_condition(owner, heard=True), now=now))
        fleet = store.transact(counted)
        found = cast("Any", fleet[of_fleet.CLUSTERS])
        assert (found["unknown"], found["other_hub"]) == (unknown, parted)
        assert fleet[of_fleet.CRITICAL] == ({EDGE: 0} if unknown else {})
    forged = replace(silence_condition("hub-b", heard=True), status="True")
    change_cluster(store, partial(doc.with_status_condition, condition=forged, now=now))
    assert cast("Any", store.transact(counted)[of_fleet.CLUSTERS])["other_hub"] == 0


async def test_scrapes_ask_the_database_rarely_and_show_no_old_number_while_it_is_unavailable(clock: ManualClock) -> None:
    store, registry = Asked(clock), Registry()
    look = FleetSnapshots(store, clock, detailed=False)
    for _ in range(10):
        await look.refresh()
    assert store.reads == 1
    clock.advance(EVERY)
    await look.refresh()
    assert store.reads == 2
    add_fleet(registry, store, clock, reserve=5)
    assert "muster_hub_clusters{" in await registry.scrape()
    store.failure = UnavailableError("away")
    clock.advance(EVERY)
    with capture_logs() as logs:
        page = await registry.scrape()
    assert ("muster_hub_clusters" in page, "muster_hub_database_reserve_bytes 5\n" in page, logs) == (False, True, [])
    store.failure = None
    clock.advance(EVERY)
    assert "muster_hub_clusters{" in await registry.scrape()


async def test_a_brake_that_holds_is_reported_until_it_lets_go(clock: ManualClock, store: InlineStore) -> None:
    registry, names = Registry(), [ClusterName(f"c{number}") for number in range(12)]
    add_fleet(registry, store, clock, reserve=0)

    def turn(tx: Transaction, verdict: Condition) -> None:
        for name in names:
            clusters.set_condition(tx, name, verdict, "test")
        brake.keep(tx, BrakeLimits(), "test")

    async def reported() -> str:
        clock.advance(EVERY)
        (line,) = (line for line in (await registry.scrape()).splitlines() if line.startswith("muster_hub_brake_holds"))
        return line.split()[-1]

    for name in names:
        store.transact(clusters.put, {"metadata": {"name": name}}, None, "ann")
    for verdict, expected in ((rules.AVAILABLE, "0"), (rules.SILENT, "1"), (rules.AVAILABLE, "0")):
        store.transact(turn, verdict)
        assert await reported() == expected


async def test_beats_are_counted_once_they_are_durable_with_the_time_that_took(clock: ManualClock, store: InlineStore) -> None:
    """Beats of an earlier epoch and those that end a silence are counted separately."""
    buffer, agent = BeatBuffer(store, clock, timedelta(seconds=1)), Acks()
    for sequence, name in ((1, "a"), (2, "a"), (3, "b")):
        buffer.hold(ClusterName(name), sequence, agent, available=True)
    store.failure = UnavailableError("away")
    await buffer.flush()
    counts = buffer.counts
    assert (counts.stored, counts.failures, counts.lag.count) == (0, 1, 0)
    store.failure = None
    clock.advance(timedelta(seconds=3))
    buffer.hold(ClusterName("c"), 4, agent, available=True)
    await buffer.flush()
    assert (counts.stored, counts.refused, counts.failures) == (3, 0, 1)
    assert counts.lag.total == pytest.approx(6.0)
    assert (counts.rows.count, counts.rows.total, sorted(agent.seen)) == (1, 3, [(2, False), (3, False), (4, False)])
    late = Acks(epoch=1)
    store.transact(lambda tx: tx.heartbeats.claim(ClusterName("gone"), 5))
    buffer.hold(ClusterName("gone"), 1, late, available=True)
    buffer.hold(ClusterName("back"), 1, Acks(), available=True, ends_silence=True)
    await buffer.flush()
    assert (counts.stored, counts.revived, counts.refused, len(late.refused)) == (4, 1, 1, 1)


async def answered(counts: RequestCounts, verb: str, resource: str, status: int | None) -> None:
    async def inner(_incoming: Incoming) -> web.StreamResponse:
        if status is None:
            raise ConnectionResetError
        return web.Response(status=status)

    incoming = Incoming(cast("web.Request", None), "id", Attributes(verb, "/x", resource=resource), 0.0)
    if status is None:
        await check_refusal_of(ConnectionResetError, counts.counted(incoming, inner))
    else:
        await counts.counted(incoming, inner)


async def test_requests_for_what_somebody_makes_up_make_no_series_of_their_own(clock: ManualClock) -> None:
    counts = RequestCounts(clock, ("managedclusters",))
    await answered(counts, "list", "managedclusters", 200)
    await answered(counts, "watch", "managedclusters", 200)
    await answered(counts, "get", "", 403)
    for number in range(50):
        await answered(counts, f"VERB{number}", f"thing{number}", 404)
    await answered(counts, "get", "managedclusters", None)
    assert dict(counts.answered) == {
        ("list", "managedclusters", "200"): 1,
        ("watch", "managedclusters", "200"): 1,
        ("get", "", "403"): 1,
        ("other", "other", "404"): 50,
        ("get", "managedclusters", "0"): 1,
    }
    assert set(counts.seconds) == {"list", "get", "other"}


def stored_order(store: InlineStore) -> LogLevelOrder | None:
    return store.transact(verbosity.current_log_level)


def test_order_counts_for_its_time_replaces_the_one_before_and_can_be_canceled(store: InlineStore, clock: ManualClock) -> None:
    store.transact(verbosity.order_log_level, "debug", timedelta(minutes=10), "admin")
    clock.advance(timedelta(seconds=599))
    order = present(stored_order(store))
    assert (order.level, order.by) == ("debug", "admin")
    clock.advance(timedelta(seconds=1))
    assert stored_order(store) is None
    store.transact(verbosity.order_log_level, "debug", timedelta(minutes=10), "admin")
    store.transact(verbosity.order_log_level, "error", timedelta(minutes=10), "admin")
    order = present(stored_order(store))
    assert order.level == "error"
    store.transact(verbosity.clear_log_level)
    assert stored_order(store) is None
