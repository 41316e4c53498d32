"""An agent of which several processes may run, and one works: the holder of its Lease.

Each term gets an agent of its own, over secrets and hubs that only the holder reaches. Losing the Lease ends that agent, its
session and its writes; the process runs for the Lease again. It ends when it is told to, and where the very first agent cannot
begin for want of a usable bootstrap kubeconfig.

Its own API server being away is no reason to leave the hub, which wants to hear of exactly that: an open session whose hub
knows of it goes on without the Lease while nobody is seen to hold it. Nothing is written meanwhile, and no session is begun but
the successor of the one that is open. Should another process have taken over, out of our sight, then the hub ends ours when it
opens its own: of two sessions the newer one stays, and who has none and no Lease opens none (ADR 0018).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from machinery.election import Candidate, Elector, Leadership, Lock, Term, Timings
from machinery.errors import InvalidError
from machinery.runtime.clock import Clock
from spoke.agent.loop import SpokeAgent
from spoke.observability.progress import AgentProgress, ProbeResult, Role
from spoke.ports import ClientIdentity, Dial, HubAddress, HubClient, Secrets, SecretSnapshot


class Fence(Protocol):
    """Stands between an agent and what only one process of it may do."""

    def secrets(self, inner: Secrets) -> Secrets: ...

    def dial(self, inner: Dial) -> Dial: ...


class OpenFence(Fence):
    """For an agent of which there is one process."""

    def secrets(self, inner: Secrets) -> Secrets:
        return inner

    def dial(self, inner: Dial) -> Dial:
        return inner


OPEN = OpenFence()


class Tenure(Fence):
    """What an agent may do in one term."""

    def __init__(self, leadership: Leadership, term: int, progress: AgentProgress) -> None:
        self._leadership = leadership
        self._term = term
        self._progress = progress

    def require_writing(self) -> None:
        """Raises NotLeaderError unless the Lease is held."""
        self._leadership.require(self._term)

    def require_dialling(self) -> None:
        """Raises NotLeaderError unless the Lease is held, or a session that its hub knows of is open."""
        if not self._progress.has_session:
            self._leadership.require(self._term)

    def secrets(self, inner: Secrets) -> Secrets:
        return HeldSecrets(inner, self)

    def dial(self, inner: Dial) -> Dial:
        """`inner` for as long as this term stands."""

        def guarded(address: HubAddress, identity: ClientIdentity) -> HubClient:
            self.require_dialling()
            return inner(address, identity)

        return guarded


class HeldSecrets(Secrets):
    """Secrets that only the holder of the Lease writes; everybody reads."""

    def __init__(self, inner: Secrets, tenure: Tenure) -> None:
        self._inner = inner
        self._tenure = tenure

    async def read(self, name: str) -> SecretSnapshot:
        return await self._inner.read(name)

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        """Raises NotLeaderError too: nothing was sent."""
        self._tenure.require_writing()
        return await self._inner.write(name, contents, version)

    async def delete(self, name: str) -> None:
        """Raises NotLeaderError too: nothing was sent."""
        self._tenure.require_writing()
        await self._inner.delete(name)

    async def named(self, prefix: str) -> Sequence[str]:
        return await self._inner.named(prefix)

    def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
        return self._inner.changes(name)


Watching = Callable[[Callable[[], object]], AbstractAsyncContextManager[object]]
"""Calls what it is given when the lock is let go of, for the length of a block: sooner than the next look would see it."""


class ElectedAgent:
    """One process of an agent. `make` makes the agent of a term; `watching` is used while this process waits for the lock."""

    def __init__(
        self,
        make: Callable[[Tenure], SpokeAgent],
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
            endures=lambda: progress.has_session,
        )
        progress.waits(self._waits)
        progress.role = self._role

    async def run(self) -> None:
        """Until cancelled; the session is ended and then the lock released. Raises InvalidError as an agent does."""
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
        """One term's agent, until it is cancelled."""
        self._idle.clear()
        self._working.set()
        try:
            await self._make(Tenure(self.leadership, term.number, self.progress)).run()
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
        """Looks at the lock as soon as it is let go of, while another process holds it."""
        while True:
            await self.elector.looked.wait()
            await self._idle.wait()
            if self.leadership.term is None:
                async with self._watching(self.elector.look):
                    await self._working.wait()
            await self._working.wait()

    def _waits(self) -> ProbeResult | None:
        """What probes are told while this process does not work; None: it works, and is judged by that.

        A process that stands by is ready: a rolling update waits for it before it ends the one that works.
        """
        if self._working.is_set():
            return None
        if self.elector.trouble:
            return ProbeResult(ok=False, text=f"not ready: the agent's Lease cannot be reached: {self.elector.trouble}")
        if not self.elector.looked.is_set():
            return ProbeResult(ok=False, text="not ready: finding out which process of this agent works")
        return ProbeResult(ok=True, text=f"ok: stands by, {self.elector.leader or 'nobody'} holds the agent's Lease")

    def _role(self) -> Role:
        holder = self.elector.leader
        if not self._working.is_set():
            return Role("cannot reach its Lease" if self.elector.trouble else "stands by", holder)
        return Role("works" if self.leadership.term is not None else "works without its Lease, and writes nothing", holder)
