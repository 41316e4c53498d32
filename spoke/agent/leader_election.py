"""Leader election between processes of one agent: only the process that holds the agent's Lease works.

In a pod, the candidate has the pod's name. A restarted container therefore takes over the Lease of the previous container
immediately; this is safe because the containers never run at the same time. Outside of pods, several processes may run on one
machine, so each process gets a unique name. If the holder of the Lease is an ended process of this machine, the Lease is free.

Each term creates an agent that can write secrets and dial hubs only while the process holds the Lease. When the process loses
the Lease, this agent and its session end, and the process becomes a candidate again. The process ends when it is stopped, or
when its first agent has neither a usable bootstrap kubeconfig nor a usable credential.

Exception (ADR 0018): if the process cannot renew the Lease because its API server is unreachable, the open session continues,
because it reports this failure to the hub. The session continues only if its hub records sessions, and only until the process
sees another holder. Meanwhile the agent writes no secrets and opens no session except the successor of the open session. If
another process takes the Lease unnoticed and opens a session, the hub ends the older session.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from machinery.client.ownership import Namespace
from machinery.election import Candidate, Elector, Leadership, Lock, LockRecord, Term, Timings
from machinery.errors import ForbiddenError, InvalidError
from machinery.runtime.clock import Clock
from spoke.agent.loop import SpokeAgent
from spoke.observability.progress import AgentProgress, ProbeResult, Role
from spoke.ports.cluster import Secrets, SecretSnapshot
from spoke.ports.hub import ClientIdentity, Dial, HubAddress, HubClient

POD_NAME = "POD_NAME"
PROC = Path("/proc")
_STATE, _START = 0, 19
"""Indexes of fields in /proc/PID/stat. Index 0 is the first field after the program's name."""
_GONE = ("Z", "X")
_MARK = "process"
_ADVICE = (
    "the agent's rights do not cover its Lease: upgrade the chart, which grants get, list, watch, create, update and patch on "
    "leases in its namespace, or run one process only, with --leader-elect=false"
)


def candidate_of(environment: Mapping[str, str], proc: Path = PROC) -> Candidate:
    one = str(uuid4())
    if pod := environment.get(POD_NAME):
        return Candidate(pod, one)
    marks = _marks(proc)
    born = _born(proc, os.getpid()) if marks else ""
    incarnation = " ".join((_MARK, marks, str(os.getpid()), born, one)) if born else one
    return Candidate(f"{socket.gethostname()}_{one[:8]}", incarnation)


class OwnLock(Lock):
    """The lock of one agent's processes. Wraps `lock`.

    A lock whose holder is a dead process of this machine counts as free. If permissions are missing, the error contains advice.
    `home`: the namespace of the lock, which the first write creates if it does not exist; None: no write creates a namespace.
    """

    def __init__(self, lock: Lock, proc: Path = PROC, *, home: Namespace | None = None) -> None:
        self._lock = lock
        self._home = home
        self._proc = proc

    async def read(self) -> LockRecord | None:
        with _advice():
            record = await self._lock.read()
        if record is not None and self._home is not None:
            self._home.seen()
        if record is not None and record.holder and is_gone(record.incarnation, self._proc):
            return replace(record, holder="")
        return record

    async def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        async def taken() -> LockRecord:
            with _advice():
                return await self._lock.take(seen, candidate, lease)

        return await (taken() if self._home is None else self._home.holding(taken))

    async def renew(self, held: LockRecord) -> LockRecord:
        return await self._lock.renew(held)

    async def release(self, held: LockRecord) -> bool:
        return await self._lock.release(held)


@contextmanager
def _advice() -> Iterator[None]:
    try:
        yield
    except ForbiddenError as error:
        raise ForbiddenError(f"{error.message}; {_ADVICE}") from error


def is_gone(incarnation: str, proc: Path = PROC) -> bool:
    """Whether the Lease's holder, the process `incarnation`, was on this machine and has ended. False: no, or unknown."""
    mark, _, rest = incarnation.partition(" ")
    marks, _, process = rest.partition(" ")
    number, _, _ = process.partition(" ")
    if mark != _MARK or not number.isdigit() or marks != _marks(proc):
        return False
    return not process.startswith(f"{number} {_born(proc, int(number)) or '-'} ")


def _marks(proc: Path) -> str:
    """Return the boot id of this machine and the id of this process's PID namespace; empty: unknown."""
    with suppress(OSError):
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(proc / 'self/ns/pid').readlink()}"
    return ""


def _born(proc: Path, number: int) -> str:
    with suppress(OSError):
        fields = (proc / str(number) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return "" if fields[_STATE] in _GONE else fields[_START]
    return ""


class TermFence:
    def __init__(self, leadership: Leadership, term: int, progress: AgentProgress) -> None:
        self._leadership = leadership
        self._term = term
        self._progress = progress

    def require_writing(self) -> None:
        """Raises NotLeaderError unless this process holds the Lease."""
        self._leadership.require(self._term)

    def require_dialling(self) -> None:
        """Raises NotLeaderError unless this process holds the Lease, or has an open session that its hub records."""
        if not self._progress.has_session:
            self._leadership.require(self._term)

    def secrets(self, inner: Secrets) -> Secrets:
        return HeldSecrets(inner, self)

    def dial(self, inner: Dial) -> Dial:
        """Return a function that calls `require_dialling`, then `inner`."""

        def guarded(address: HubAddress, identity: ClientIdentity) -> HubClient:
            self.require_dialling()
            return inner(address, identity)

        return guarded


class HeldSecrets(Secrets):
    """Secrets that only the holder of the Lease writes; every process may read."""

    def __init__(self, inner: Secrets, fence: TermFence) -> None:
        self._inner = inner
        self._fence = fence

    async def read(self, name: str) -> SecretSnapshot:
        return await self._inner.read(name)

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        """Write the secret. Raises NotLeaderError, before anything is sent, unless this process holds the Lease."""
        self._fence.require_writing()
        return await self._inner.write(name, contents, version)

    async def delete(self, name: str) -> None:
        """Delete the secret. Raises NotLeaderError, before anything is sent, unless this process holds the Lease."""
        self._fence.require_writing()
        await self._inner.delete(name)

    async def named(self, prefix: str) -> Sequence[str]:
        return await self._inner.named(prefix)

    def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        return self._inner.changes(name)


Watching = Callable[[Callable[[], object]], AbstractAsyncContextManager[object]]
"""Takes a callback and returns a context manager. During the block, each release of the lock calls the callback."""


class ElectedAgent:
    """One process of an agent. `make` creates the agent of each term. `watching` watches a lock that another process holds."""

    def __init__(
        self,
        make: Callable[[TermFence], SpokeAgent],
        lock: Lock,
        candidate: Candidate,
        *,
        timings: Timings,
        clock: Clock,
        progress: AgentProgress,
        watching: Watching,
    ) -> None:
        self.progress = progress
        self.leadership = Leadership(clock)
        self._make = make
        self._watching = watching
        self._working, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._began_once = False
        self._unusable: asyncio.Future[InvalidError] = asyncio.get_running_loop().create_future()
        self.elector = Elector(
            lock,
            candidate,
            self._work,
            timings=timings,
            clock=clock,
            leadership=self.leadership,
            survives_renew_failure=lambda: progress.has_session,
        )
        progress.waits(self._waits)
        progress.role = self._role

    async def run(self) -> None:
        """Run until cancelled; then end the session and release the lock. Raises InvalidError if no credential is usable."""
        electing = asyncio.create_task(self.elector.run(), name="election")
        listening = asyncio.create_task(self._listen(), name="election/releases")
        try:
            await asyncio.wait((electing, listening, self._unusable), return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self.elector.stop()
            listening.cancel()
            await asyncio.wait((electing, listening))
        for task in (electing, listening):
            if not task.cancelled():
                task.result()
        raise self._unusable.result()

    async def _work(self, term: Term) -> None:
        self._idle.clear()
        self._working.set()
        try:
            await self._make(TermFence(self.leadership, term.number, self.progress)).run()
        except InvalidError as error:
            if self._began_once:
                raise
            self._unusable.set_result(error)
            await asyncio.Event().wait()
        finally:
            self._began_once = True
            self.progress.stop()
            self._working.clear()
            self._idle.set()

    async def _listen(self) -> None:
        """Watch the lock while another process holds it. When the holder releases the lock, poll it immediately."""
        while True:
            await self.elector.leader_known.wait()
            await self._idle.wait()
            if self.leadership.term is None:
                async with self._watching(self.elector.poll):
                    await self._working.wait()
            await self._working.wait()

    def _waits(self) -> ProbeResult | None:
        """Return the readiness of a process that does not work; None: the process works, so its agent determines the readiness.

        A waiting process is ready, because a rolling update ends the old, working process only when the new process is ready.
        """
        if self._working.is_set():
            return None
        if self.elector.last_failure:
            return ProbeResult(ok=False, text=f"not ready: the agent's Lease cannot be reached: {self.elector.last_failure}")
        if not self.elector.leader_known.is_set():
            return ProbeResult(ok=False, text="not ready: it is not known yet which process of this agent works")
        return ProbeResult(ok=True, text=f"ok: stands by, {self.elector.leader or 'nobody'} holds the agent's Lease")

    def _role(self) -> Role:
        holder = self.elector.leader
        if not self._working.is_set():
            return Role("cannot reach its Lease" if self.elector.last_failure else "stands by", holder)
        return Role("works" if self.leadership.term is not None else "works without its Lease, and writes nothing", holder)
