"""Which replica of the hub this process is, and its word to the others that it is there.

Its name is what audit records, sessions and leadership know it by. Its row in the database says that it lives: written
every two seconds, and no news. Two processes never serve under one name: the second is refused, unless the first is dead.
"""

import asyncio
import os
import re
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import structlog

from hub.api.hubreplicas.replica import BEAT, LOST_AFTER, Load, Replica
from hub.ports import Store, Transaction
from hub.registry.hubreplicas import service as replicas
from hub.settings import HubSettings
from machinery.errors import AlreadyExistsError, InvalidError, MusterError
from machinery.lifecycle.resource_usage import ProcessUsage, resident
from machinery.lifecycle.signals import LifecycleSignal, LifecycleSignals
from machinery.product import version
from machinery.runtime.clock import Clock
from machinery.runtime.directory import DataDirectory
from machinery.runtime.rate_limit import until_tick

FILE = "replica"
POD_NAME = "POD_NAME"
"""The downward API's, as the charts set it."""
LONGEST = 200

log = structlog.get_logger(__name__)
BEFORE = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def is_alone(settings: HubSettings) -> bool:
    """Whether no other replica can be: the embedded database serves one hub."""
    url = settings.database_url
    return url is None or url.get_secret_value().startswith("sqlite")


def replica_name(settings: HubSettings, directory: DataDirectory, environment: Mapping[str, str] | None = None) -> str:
    """The same after every restart. Raises InvalidError for what names no replica, UnavailableError.

    On the embedded database it is one that the data directory keeps, because that may move to another machine.
    """
    if settings.replica_name:
        return _checked(settings.replica_name, "--replica-name")
    if is_alone(settings):
        return home_of(directory)
    pod = (os.environ if environment is None else environment).get(POD_NAME)
    if pod:
        return _checked(pod, POD_NAME)
    return _checked(re.sub(r"[^a-z0-9.-]", "-", socket.gethostname().lower()).strip("-."), "the host's name")


def _checked(name: str, origin: str) -> str:
    if len(name) > LONGEST or not _NAME.fullmatch(name):
        raise InvalidError(
            f'{origin}: "{name}" can name no replica: use lower-case letters, digits, "-" and ".", as in --replica-name hub-0'
        )
    return name


def home_of(directory: DataDirectory) -> str:
    """The name of this data directory, which one process at a time can have. Raises UnavailableError."""
    known = directory.read(FILE)
    if known is not None and known.strip():
        return known.decode("ascii", "replace").strip()
    name = str(uuid4())
    directory.write(FILE, f"{name}\n".encode())
    return name


def this_replica(name: str, settings: HubSettings, directory: DataDirectory) -> Replica:
    """What the row of this process says of it; the database gives the times. Raises UnavailableError."""
    return Replica(
        name=name,
        home=home_of(directory),
        instance=uuid4().hex,
        version=version(),
        grpc=str(settings.grpc_listen),
        https=str(settings.https_listen),
        started=BEFORE,
        seen=BEFORE,
    )


async def take_place(store: Store, me: Replica, *, alone: bool) -> None:
    """Returns when nobody else serves under this name. Raises AlreadyExistsError when somebody does, UnavailableError."""
    if alone:
        await store.run(replicas.begin_alone, me)
        return
    rest, seen = LOST_AFTER + BEAT, await store.read(_seen, me.name)
    while True:
        try:
            await store.run(replicas.begin, me)
        except AlreadyExistsError:
            if rest <= timedelta() or await store.read(_seen, me.name) != seen:
                raise
            log.info("a replica of this name was there a moment ago: waiting until it is known to be dead", replica=me.name)
        else:
            return
        await asyncio.sleep(BEAT.total_seconds())
        rest -= BEAT


def _seen(tx: Transaction, name: str) -> datetime | None:
    found = tx.replicas.of(name)
    return None if found is None else found.seen


@dataclass(frozen=True, slots=True)
class ReplicaStats:
    """What a replica tells of itself with each beat, beside what it uses of its machine."""

    clock: Clock
    sessions: Callable[[], int] = lambda: 0
    watches: Callable[[], int] = lambda: 0


@dataclass(frozen=True, slots=True)
class HeartbeatCallbacks:
    """Who hears what a beat brings back."""

    given_up: Callable[[], None] = lambda: None
    """Others took this replica for dead."""
    drained: Callable[[bool], None] = lambda _drained: None
    """With every beat: whether an operator wants no session here."""


class ReplicaHeartbeat:
    """Keeps the row of this replica."""

    def __init__(
        self,
        store: Store,
        me: Replica,
        signals: LifecycleSignals,
        measures: ReplicaStats,
        heard: HeartbeatCallbacks = HeartbeatCallbacks(),
    ) -> None:
        self._store = store
        self._me = me
        self._signals = signals
        self._measures = measures
        self._heard = heard
        self._usage = ProcessUsage()
        self._news = asyncio.Event()
        self._left = False
        self._trouble = ""

    async def run(self) -> None:
        """Beats for ever, and at once when it gets ready or begins to end. Raises AlreadyExistsError: the name was taken."""
        async with asyncio.TaskGroup() as tasks:
            for signal in (self._signals.has_been_ready, self._signals.shutdown_initiated):
                tasks.create_task(self._tell_of(signal), name=f"presence {signal.name}")
            while True:
                self._news.clear()
                if not self._left:
                    await self.beat()
                with suppress(TimeoutError):
                    async with asyncio.timeout(until_tick(BEAT)):
                        await self._news.wait()

    async def _tell_of(self, signal: LifecycleSignal) -> None:
        await signal.wait()
        self._news.set()

    async def beat(self) -> None:
        ending = self._signals.shutdown_initiated.signaled
        ready = self._signals.has_been_ready.signaled and not ending
        measures = self._measures
        load = Load(measures.watches(), self._usage.processor(), resident(), timedelta())
        me = replace(self._me, sessions=measures.sessions(), ready=ready, draining=ending, load=load)
        me = replace(me, seen=measures.clock.now())
        try:
            standing = await self._store.run(replicas.beat, me)
        except AlreadyExistsError:
            raise
        except MusterError as error:
            if error.message != self._trouble:
                log.warning("this replica cannot say that it is there", error=error.message)
            self._trouble = error.message
            return
        self._trouble = ""
        self._me = replace(self._me, drained=standing.drained)
        self._heard.drained(standing.drained)
        if not standing.known:
            log.warning("this replica was taken for dead, and its sessions with it")
            self._heard.given_up()

    async def leave(self) -> None:
        """It ends in good order: nobody has to wait until it is known to be dead. Where that cannot be said, they wait."""
        self._left = True
        try:
            await self._store.run(replicas.leave, self._me)
        except MusterError as error:
            log.warning("this replica cannot say that it leaves", error=error.message)
