"""Keeps an agent inactive after its cluster has left its hubs: the agent's side of `spoke leave`.

`spoke leave` writes a LeftMark into the owner's secret, with fingerprints of the present bootstrap credentials. Every process
of the agent reads the LeftMark, ends its session and releases its Lease. The process then waits until a new bootstrap
kubeconfig appears, the secret is deleted, or an agent starts with --rejoin.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Protocol, cast

import structlog

from machinery.errors import MusterError
from machinery.runtime.event_loop import wait_at_most
from machinery.runtime.tasks import cancel_and_wait
from spoke.bootstraps.listing import Bootstraps
from spoke.bootstraps.watch import BootstrapWatch
from spoke.credentials.kubeconfigs import HubConnection
from spoke.credentials.slot import OWNER_SECRET, Contents, Slot
from spoke.domain.credential import LEFT
from spoke.observability.progress import AgentProgress, ProbeResult, Role
from spoke.ports.cluster import Secrets, SecretSnapshot

POLL = timedelta(seconds=2)
"""Poll interval of files; secrets are watched."""
RETRY = timedelta(seconds=30)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LeftMark:
    """States that a cluster left its hubs. `at`: time, for display. `known`: fingerprints of its bootstrap credentials."""

    at: str
    known: frozenset[str]

    def content(self) -> bytes:
        return json.dumps({"at": self.at, "known": sorted(self.known)}).encode()

    def covers(self, present: Collection[str]) -> bool:
        return self.known.issuperset(present)


def mark_in(contents: Contents) -> LeftMark | None:
    """Return the LeftMark in `contents`, the content of the owner's secret; None: the secret contains no LeftMark.

    An unreadable LeftMark has no fingerprints, so the agent removes it when it finds any bootstrap credential.
    """
    if LEFT not in contents:
        return None
    with suppress(ValueError, TypeError, KeyError):
        document = json.loads(contents[LEFT])
        return LeftMark(str(document["at"]), frozenset(map(str, document["known"])))
    return LeftMark("", frozenset())


def fingerprints(bootstraps: Bootstraps) -> frozenset[str]:
    """Return a fingerprint for each present bootstrap credential. A fingerprint does not reveal the credential."""
    hubs = bootstraps.read().hubs
    return frozenset(hashlib.sha256(hub.hub_id.encode() + _credential(hub.connection)).hexdigest()[:32] for hub in hubs)


def _credential(connection: HubConnection) -> bytes:
    token = connection.identity.token
    return connection.identity.certificate or (token.text or str(token.file) if token is not None else "").encode()


class Working(Protocol):
    """The interface of an agent, or of one process of an agent."""

    async def run(self) -> None: ...


@dataclass(eq=False)
class ResidentAgent:
    """Runs an agent unless its cluster has left its hubs. `make` creates the agent of a run. `list_of` returns the hub list."""

    make: Callable[[], Working]
    secrets: Secrets
    list_of: Callable[[], Bootstraps]
    progress: AgentProgress
    _: KW_ONLY
    rejoin: bool = False

    def __post_init__(self) -> None:
        self._mark: LeftMark | None = None
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled. Raises InvalidError at the start if neither bootstrap kubeconfig nor credential is usable."""
        try:
            if self.rejoin:
                await forget_departure(self.secrets)
            else:
                self._take(await self.secrets.read(OWNER_SECRET))
        except MusterError as error:
            log.debug("departure.unknown", error=error.message)  # the agent gets the same error and reports it
        following = asyncio.create_task(self._follow(), name="departure")
        try:
            while True:
                await (self._away(self._mark) if self._mark is not None else self._at_home())
        finally:
            await cancel_and_wait(following)

    async def _at_home(self) -> None:
        working = asyncio.create_task(self.make().run(), name="resident")
        try:
            while self._mark is None and not working.done():
                self._news.clear()
                news = asyncio.create_task(self._news.wait(), name="departure/news")
                try:
                    await asyncio.wait((working, news), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
        finally:
            if not working.done():
                await cancel_and_wait(working)
                self.progress.stop()
        if not working.cancelled():
            working.result()

    async def _away(self, mark: LeftMark) -> None:
        since = f" since {mark.at}" if mark.at else ""
        said = f"this cluster has left its hubs{since}: hand in a new bootstrap kubeconfig, or start the agent with --rejoin"
        log.warning("departure.away", because=said)
        self.progress.waits(lambda: ProbeResult(ok=True, text=f"ok: {said}"))
        self.progress.role = lambda: Role(f"stays away: {said}")
        try:
            bootstraps = self.list_of()
            async with BootstrapWatch(bootstraps).watching():
                while self._mark == mark:
                    if not mark.covers(fingerprints(bootstraps)):
                        await forget_departure(self.secrets)
                        self._mark = None
                        return
                    self._news.clear()
                    await wait_at_most(self._news, POLL.total_seconds())
        except MusterError as error:
            log.warning("departure.not_cancelled", error=error.message)
            await asyncio.sleep(RETRY.total_seconds())
        finally:
            self.progress.waits(lambda: None)
            self.progress.role = Role

    async def _follow(self) -> None:
        """Watch the secret and keep the mark in memory up to date. Restart a failed watch."""
        while True:
            try:
                changes = cast("AsyncGenerator[SecretSnapshot, None]", self.secrets.changes(OWNER_SECRET))
                async with aclosing(changes) as snapshots:
                    async for snapshot in snapshots:
                        self._take(snapshot)
            except Exception:
                log.exception("departure.not_watched", in_seconds=RETRY.total_seconds())
            await asyncio.sleep(RETRY.total_seconds())

    def _take(self, snapshot: SecretSnapshot) -> None:
        self._mark = mark_in(snapshot.contents)
        self._news.set()


async def forget_departure(secrets: Secrets) -> None:
    """Remove the LeftMark of `spoke leave` from the owner's secret. Delete the secret if it has no other content."""
    slot = Slot(secrets, OWNER_SECRET)
    contents = await slot.read()
    mark = mark_in(contents)
    if mark is None:
        return
    log.info("departure.forgotten", left_at=mark.at, next="registering again")
    if set(contents) == {LEFT}:
        await slot.delete()
    else:
        await slot.change(lambda present: {key: value for key, value in present.items() if key != LEFT})
