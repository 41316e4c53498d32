"""The name of this replica and its heartbeat, a row in the database.

Audit records, sessions and leadership refer to the name. The replica writes the row every two seconds, without a revision. Two
processes never serve under one name: the second process is refused unless the first is lost.
"""

import asyncio
import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import structlog

from hub.api.hubreplicas import BEAT, LOST_AFTER, Load, Replica
from hub.ports import Store, Transaction
from hub.registry.hubreplicas import service as replicas
from hub.settings import HubSettings
from machinery.errors import AlreadyExistsError, InvalidError, MusterError
from machinery.lifecycle.server import LifecycleSignal, LifecycleSignals
from machinery.lifecycle.usage import ProcessUsage, resident
from machinery.observability.logs import LogOnce
from machinery.product import version
from machinery.runtime.clock import Clock
from machinery.runtime.directory import DataDirectory
from machinery.runtime.event_loop import until_tick, wait_at_most

FILE = "replica"
POD_NAME = "POD_NAME"
"""Environment variable with the pod's name, which the charts set from the downward API."""
LONGEST = 200

log = structlog.get_logger(__name__)
BEFORE = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def replica_name(settings: HubSettings, directory: DataDirectory, environment: Mapping[str, str] | None = None) -> str:
    """Return the first of: the setting, the stored name (SQLite), the pod's name, the host's name.

    With SQLite, the data directory contains the name, because the directory may move to another machine. Raises
    UnavailableError, and InvalidError for an unusable name.
    """
    if settings.replica_name:
        return _checked(settings.replica_name, "--replica-name")
    if settings.is_alone:
        return installation_name(directory)
    pod = (os.environ if environment is None else environment).get(POD_NAME)
    if pod:
        return _checked(pod, POD_NAME)
    return _checked(re.sub(r"[^a-z0-9.-]", "-", socket.gethostname().lower()).strip("-."), "the host's name")


def _checked(name: str, origin: str) -> str:
    if len(name) > LONGEST or not _NAME.fullmatch(name):
        raise InvalidError(f'{origin}: "{name}" is not a name for a replica: use lower-case letters, digits, "-" and "."')
    return name


def installation_name(directory: DataDirectory) -> str:
    """Return the name in this data directory (locked by one process). The first call makes it. Raises UnavailableError."""
    known = directory.read(FILE)
    if known is not None and known.strip():
        return known.decode("ascii", "replace").strip()
    name = str(uuid4())
    directory.write(FILE, f"{name}\n".encode())
    return name


def this_replica(name: str, settings: HubSettings, directory: DataDirectory) -> Replica:
    """Return the row of this process. The database sets its times. Raises UnavailableError."""
    return Replica(
        name=name,
        home=installation_name(directory),
        instance=uuid4().hex,
        version=version(),
        grpc=str(settings.grpc_listen),
        https=str(settings.https_listen),
        started=BEFORE,
        seen=BEFORE,
    )


async def register_replica(store: Store, me: Replica, *, alone: bool) -> None:
    """Register the name. Waits until an earlier holder is lost, unless no other replica can exist (`alone`).

    Raises AlreadyExistsError if another process serves under this name, UnavailableError.
    """
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
            log.info("another replica used this name a moment ago: waiting until it counts as lost", replica=me.name)
        else:
            return
        await asyncio.sleep(BEAT.total_seconds())
        rest -= BEAT


def _seen(tx: Transaction, name: str) -> datetime | None:
    found = tx.replicas.of(name)
    return None if found is None else found.seen


@dataclass(eq=False)
class ReplicaHeartbeat:
    """Keeps the row of this replica up to date.

    `sessions` and `watches` return their numbers. `declared_lost`: called when other replicas have declared this replica lost.
    `drained`: called after every heartbeat, with whether an operator drains this replica.
    """

    store: Store
    me: Replica
    signals: LifecycleSignals
    clock: Clock
    sessions: Callable[[], int] = lambda: 0
    watches: Callable[[], int] = lambda: 0
    declared_lost: Callable[[], None] = lambda: None
    drained: Callable[[bool], None] = lambda _drained: None
    _usage: ProcessUsage = field(default_factory=ProcessUsage, init=False)
    _woken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _left: bool = field(default=False, init=False)
    _failure: LogOnce = field(default_factory=lambda: LogOnce(log), init=False)

    async def run(self) -> None:
        """Update the row until cancelled, and immediately when the replica becomes ready or stops.

        Raises AlreadyExistsError if another process took the name.
        """
        async with asyncio.TaskGroup() as tasks:
            for signal in (self.signals.has_been_ready, self.signals.shutdown_initiated):
                tasks.create_task(self._wake_on(signal), name=f"presence {signal.name}")
            while True:
                self._woken.clear()
                if not self._left:
                    await self.beat()
                await wait_at_most(self._woken, until_tick(BEAT))

    async def _wake_on(self, signal: LifecycleSignal) -> None:
        await signal.wait()
        self._woken.set()

    async def beat(self) -> None:
        ending = self.signals.shutdown_initiated.is_set()
        ready = self.signals.has_been_ready.is_set() and not ending
        load = Load(self.watches(), self._usage.processor(), resident(), timedelta())
        me = replace(self.me, sessions=self.sessions(), ready=ready, draining=ending, load=load, seen=self.clock.now())
        try:
            update = await self.store.run(replicas.beat, me)
        except AlreadyExistsError:
            raise
        except MusterError as error:
            self._failure.warning("this replica cannot update its row", error)
            return
        self._failure.reset()
        self.me = replace(self.me, drained=update.drained)
        self.drained(update.drained)
        if not update.known:
            log.warning("this replica counted as lost, and its sessions as ended")
            self.declared_lost()

    async def leave(self) -> None:
        """Remove the row, so that no process has to wait for its expiry. A failure is only logged."""
        self._left = True
        try:
            await self.store.run(replicas.leave, self.me)
        except MusterError as error:
            log.warning("this replica cannot remove its row", error=error.message)
