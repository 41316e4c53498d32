"""What looks or writes for ever and cannot: the log tells each trouble once, another one as well, and that it is over."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from hub.access import BootstrapTokens, Peers
from hub.access.rbac_cache import RBACCache
from hub.api.auditrecords import AuditEntry
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.hubreplicas import Replica
from hub.api.meta.change import MANAGED_CLUSTERS, Change
from hub.audit.trail import Trail
from hub.grpc_door.session.changes import ChangeSubscriptions as StreamFeed
from hub.grpc_door.session.clock_reports import Clocks
from hub.grpc_door.session.sessions import Sessions
from hub.grpc_door.session.trust_bundle_push import TrustBundlePush
from hub.heartbeat import BeatBuffer, HeartbeatCoverage
from hub.https_door.callers.authentication import AuthenticatorChain, Dependencies, issuer_of
from hub.https_door.storage.feed import ChangeFeed
from hub.https_door.storage.storage import ServiceStorage
from hub.ports import Transaction
from hub.registry.managedclusters import service as clusters
from hub.replica.admin_kubeconfig import AdminKubeconfig
from hub.replica.heartbeat import ReplicaHeartbeat, ReplicaStats
from hub.store.changelog.tail import Tail
from machinery.errors import UnavailableError
from machinery.identity import AgentId, ClusterName, HubId, SerialNumber
from machinery.lifecycle.server import LifecycleSignals
from machinery.product import GROUP_SUFFIX
from machinery.runtime.clock import ManualClock
from machinery.runtime.informer import Informer
from tests.checks import check_each
from tests.fakes.audit_records import MemorySink, record
from tests.fakes.controllers import builder_of
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import fresh_store
from tests.fakes.virtual_time import in_virtual_time
from tests.unit.hub.test_beat_buffer import Acks
from tests.unit.hub.test_sessions import Open

EDGE = ClusterName("edge")
WORDS = ("full", "full", "away", "away", "", "away")
FOLLOWERS = ("full", "away")
"""A follower that has caught up reads no more: its store has the changes in memory."""
LONG_ENOUGH = 12
"""Seconds; longer than any of them pauses."""


@dataclass
class Ailing:
    """A store that fails with this word; "" is none."""

    store: InlineStore
    word: str = ""

    def fails(self, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
        right = getattr(self.store, method)

        async def asked(*args: Any, **kwargs: Any) -> Any:
            if self.word:
                raise UnavailableError(self.word)
            return await right(*args, **kwargs)

        monkeypatch.setattr(self.store, method, asked)


@dataclass
class Case:
    """`again`: what is told when the trouble is over. `wanted`: gives it something to do. `errors`: what is told of WORDS."""

    run: Coroutine[Any, Any, None]
    trouble: str
    again: str = ""
    wanted: Callable[[], object] = lambda: None
    errors: Sequence[str] = ("full", "away", "away")


def presence(store: InlineStore, clock: ManualClock) -> Case:
    me = Replica("one", "home", "first", "1", "grpc", "https", clock.now(), clock.now())
    return Case(
        ReplicaHeartbeat(store, me, LifecycleSignals(clock), ReplicaStats(clock)).run(),
        "this replica cannot say that it is there",
    )


def clocks(store: InlineStore, _clock: ManualClock) -> Case:
    subject = Clocks(store, timedelta())
    told = "what agents' clocks say cannot be written down"
    return Case(subject.run(), told, wanted=lambda: subject.told(EDGE, timedelta()))


def beats(store: InlineStore, clock: ManualClock) -> Case:
    subject = BeatBuffer(store, clock, timedelta(seconds=1))
    told, again = "heartbeats cannot be stored and are not acknowledged", "heartbeats are stored again"
    return Case(subject.run(), told, again, lambda: subject.hold(EDGE, 1, Acks(), available=True))


def records(store: InlineStore, clock: ManualClock) -> Case:
    class Sink(MemorySink):
        async def write(self, entries: Sequence[AuditEntry]) -> None:
            await store.run(lambda _tx: None)
            await super().write(entries)

    trail = Trail(Sink(), clock, capacity=100, batch=10, window=timedelta(milliseconds=5))
    told, again = "audit records cannot be written now", "audit records are written again"
    return Case(trail.run(), told, again, lambda: trail.offer(record(1)))


def log_of_changes(store: InlineStore, _clock: ManualClock) -> Case:
    async def fetch(_after: int) -> tuple[Sequence[Change], int]:
        return await store.read(lambda _tx: ((), 0))

    async def mend(_seen: int, _shown: Change | None) -> bool:
        return False

    return Case(Tail(fetch, mend, 0, timedelta(seconds=1)).run(), "change log cannot be read")


def trust(store: InlineStore, clock: ManualClock) -> Case:
    now = clock.now()
    came = CertificateRecord(SerialNumber(1), Purpose.AGENT, "u", (), now, now, "k", now, cluster=EDGE, agent=AgentId("a"))
    subject, numbers = TrustBundlePush(store, lambda: b""), count()
    told = "what agents trust cannot be kept now"
    return Case(subject.run(), told, wanted=lambda: subject.note(came, frozenset({f"{next(numbers)}"})))


def admin_file(store: InlineStore, clock: ManualClock) -> Case:
    class Kept(AdminKubeconfig):
        async def keep(self) -> Path:
            return await store.read(lambda _tx: Path())

    none: Any = None
    subject = Kept(none, store, none, none, lifetimes=none, clock=clock)
    return Case(subject.run(), "admin kubeconfig cannot be kept right now", wanted=subject.look)


def accounts(store: InlineStore, clock: ManualClock) -> Case:
    feed, none = ChangeFeed(store), cast("Any", None)
    grounds = Dependencies(store, ServiceStorage(store, feed, GROUP_SUFFIX), feed, clock)
    subject = AuthenticatorChain(grounds, issuer_of(HubId("hub"), None), none, None)
    return Case(subject.run(), "deleted ServiceAccounts cannot be seen now", errors=FOLLOWERS)


def followed(
    store: InlineStore, run: Coroutine[Any, Any, None], trouble: str = "the change log cannot be followed now"
) -> Case:
    """Each look changes an object, whoever is kept from the store."""
    names = (f"c{number}" for number in count())
    return Case(run, trouble, wanted=lambda: store.transact(made, next(names)), errors=FOLLOWERS)


def made(tx: Transaction, name: str) -> None:
    clusters.put(tx, {"metadata": {"name": name}}, None, "admin")


def controllers_of(store: InlineStore) -> Informer[Change]:
    builder = builder_of(store)
    builder.watch(MANAGED_CLUSTERS, lambda _key: None)
    return builder.informer(asyncio.Event())


OTHERS = ("sessions of other replicas cannot be read", "sessions of other replicas are read again")
SILENCES = "silences are not counted: beats cannot be stored"
EVERYBODY: tuple[Callable[[InlineStore, ManualClock], Case], ...] = (
    lambda store, clock: Case(Peers(store, clock).run(), "revocations cannot be read", "revocations are read again"),
    lambda store, _: Case(BootstrapTokens(store).run(), "revoked bootstrap credentials cannot be read"),
    lambda store, clock: Case(RBACCache(store, clock).run(), "the age of the roles cannot be proven"),
    lambda store, _: Case(Sessions(store, "one").follow_others(), *OTHERS),
    lambda store, clock: Case(HeartbeatCoverage(store, clock, "one", lambda: True).run(), SILENCES),
    lambda store, clock: followed(store, RBACCache(store, clock).run()),
    lambda store, _: followed(store, controllers_of(store).run()),
    lambda store, _: followed(store, StreamFeed(store).run()),
    lambda store, _: followed(store, ChangeFeed(store).run()),
    *(presence, clocks, beats, records, log_of_changes, trust, admin_file, accounts),
)


def test_every_background_task_logs_each_trouble_once_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(made: Callable[[InlineStore, ManualClock], Case]) -> None:
        lines, case = logged(made, WORDS, monkeypatch)
        assert [line["error"] for line in lines if line["event"] == case.trouble] == list(case.errors), lines
        assert [line["log_level"] for line in lines if line["event"] == case.again] == ["info"] * bool(case.again), lines

    check_each(check, [(made,) for made in EVERYBODY])


def test_it_is_told_when_open_sessions_are_written_down_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def ours(store: InlineStore, _clock: ManualClock) -> Case:
        sessions = Sessions(store, "one")
        return Case(sessions.run(), "open sessions cannot be written down", wanted=lambda: sessions.add(Open("a")))

    lines, case = logged(ours, ("", "full", "full", "away", "", ""), monkeypatch)
    told = [line["event"] for line in lines]
    assert told == [case.trouble, case.trouble, "open sessions are written down again"]


def logged(
    made: Callable[[InlineStore, ManualClock], Case], words: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Sequence[Mapping[str, Any]], Case]:
    async def run() -> tuple[Sequence[Mapping[str, Any]], Case]:
        clock = ManualClock()
        ailing = Ailing(fresh_store(clock))
        for method in ("run", "read"):
            ailing.fails(monkeypatch, method)
        case = made(ailing.store, clock)
        running = asyncio.create_task(case.run)
        with capture_logs() as lines:
            for ailing.word in words:
                case.wanted()
                await asyncio.sleep(LONG_ENOUGH)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        return lines, case

    return in_virtual_time(run())
