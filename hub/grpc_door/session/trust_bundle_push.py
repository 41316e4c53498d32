"""What agents trust: kept as they say it, and the hub's bundle pushed to those whose trust is another.

A bundle that changes while thousands of sessions are open is not pushed to all at once: each agent tries it with a handshake,
writes it into its cluster, and answers. So sessions wait in one line, and a bounded number per second is served. An agent
that does not say what it trusts (an earlier release) is left alone. One that was sent the bundle and did not take it is sent it
again after a while, and in its next session.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import lru_cache
from typing import Protocol

import structlog

from hub.api.certificateauthorities.trust import told
from hub.api.certificates.certificate import CertificateRecord
from hub.ports import Store
from hub.registry.certificateauthorities import trust
from hub.registry.certificateauthorities.trust import TrustReport
from machinery.errors import MusterError
from machinery.identity import AgentId, ClusterName
from machinery.pki import parse_chain
from machinery.runtime.backoff import Backoff
from machinery.runtime.rate_limit import paced, until_tick
from machinery.wire.session.v1 import session_pb2 as wire

PER_SECOND = 50.0
"""Bundles that one replica sends: ten thousand agents have it after 200 seconds."""
LOOK = timedelta(seconds=1)
"""How often the hub's bundle is compared with what was pushed."""
AGAIN = timedelta(minutes=10)
"""For an agent to be sent the same bundle again, which it did not take."""
RECONSIDERED = 500.0
"""Sessions that look again in a second, when one of the hub's CAs is another."""
GATHER = timedelta(milliseconds=200)
"""What agents say within this is written down together."""
MOST = 500
"""Words in one transaction."""
_Place = tuple[ClusterName | None, AgentId | None]

log = structlog.get_logger(__name__)


@lru_cache(maxsize=8)
def fingerprints(bundle: bytes) -> frozenset[str]:
    """Hex SHA-256 of the DER of each CA certificate of a bundle (PEM)."""
    return frozenset(each.fingerprint for each in parse_chain(bundle))


class Trustee(Protocol):
    """An open session, as far as this goes."""

    trusted: frozenset[str] | None
    """What its agent said last."""

    def push(self, bundle: bytes) -> None: ...

    def reconsider(self) -> None:
        """The hub's CAs are others: its agent may have to be told something else."""


class TrustBundlePush:
    """Of one process: the line of those that are to be sent the bundle, and what is yet to be written down."""

    def __init__(
        self,
        store: Store,
        bundle: Callable[[], bytes],
        *,
        rate: float = PER_SECOND,
        standing: Callable[[], object] = lambda: None,
    ) -> None:
        """`standing`: another whenever one of the hub's CAs is, in whatever."""
        self._store = store
        self._bundle = bundle
        self._rate = rate
        self._standing = standing
        self._open: dict[Trustee, tuple[float, bytes]] = {}
        self._line: dict[Trustee, None] = {}
        self._words: dict[_Place, TrustReport] = {}
        self._waiting = asyncio.Event()
        self._spoken = asyncio.Event()
        self.pushed = 0
        """How many bundles were sent."""

    def __len__(self) -> int:
        """How many sessions wait for the bundle."""
        return len(self._line)

    def note(self, record: CertificateRecord, trusted: frozenset[str] | None) -> None:
        """An agent came with this certificate, and trusts this; kept soon."""
        self._words[record.cluster, record.agent] = TrustReport(record, trusted)
        self._spoken.set()

    def look(self, session: Trustee) -> None:
        """The session has said what its agent trusts: it comes into the line where that is not the hub's bundle."""
        self._open.setdefault(session, (0.0, b""))
        if self._needs(session):
            self._line[session] = None
            self._waiting.set()

    def leave(self, session: Trustee) -> None:
        self._open.pop(session, None)
        self._line.pop(session, None)

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._push(), name="trust/push")
            group.create_task(self._follow(), name="trust/bundle")
            group.create_task(self._keep(), name="trust/words")

    async def _push(self) -> None:
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            while self._line:
                session = next(iter(self._line))
                del self._line[session]
                if self._needs(session):
                    bundle = self._bundle()
                    self._open[session] = asyncio.get_running_loop().time(), bundle
                    session.push(bundle)
                    self.pushed += 1
                await asyncio.sleep(1 / self._rate)

    async def _follow(self) -> None:
        """Everybody is looked at when the bundle is another, and now and then for those that did not take it."""
        loop = asyncio.get_running_loop()
        seen, at, stood = self._bundle(), loop.time(), self._standing()
        while True:
            await asyncio.sleep(until_tick(LOOK))
            if self._standing() != stood:
                stood = self._standing()
                async for session in paced(tuple(self._open), RECONSIDERED):
                    session.reconsider()
            bundle = self._bundle()
            if bundle != seen or loop.time() - at > AGAIN.total_seconds():
                seen, at = bundle, loop.time()
                self._look_at(tuple(self._open))

    def _look_at(self, sessions: Iterable[Trustee]) -> None:
        for session in sessions:
            self.look(session)

    def _needs(self, session: Trustee) -> bool:
        if session not in self._open or session.trusted is None:
            return False
        at, bundle = self._open[session]
        present = self._bundle()
        is_fresh = bundle == present and asyncio.get_running_loop().time() - at < AGAIN.total_seconds()
        return not is_fresh and session.trusted != fingerprints(present)

    async def _keep(self) -> None:
        pauses, told = Backoff(GATHER, timedelta(seconds=5)), ""
        while True:
            await self._spoken.wait()
            await asyncio.sleep(GATHER.total_seconds())
            self._spoken.clear()
            try:
                await self.write()
                pauses.reset()
                told = ""
            except MusterError as error:
                if error.message != told:
                    log.warning("what agents trust cannot be kept now", error=error.message)
                told = error.message
                await asyncio.sleep(pauses.next().total_seconds())
                self._spoken.set()

    async def write(self) -> None:
        """Writes down what is not on record; only what is news costs a write. Raises MusterError, and nothing is lost."""
        while self._words:
            places = list(self._words)[:MOST]
            words = {place: self._words.pop(place) for place in places}
            try:
                if await self._store.read(trust.news, words.values()):
                    await self._store.run(trust.note, words.values())
            except BaseException:
                self._words = words | self._words
                raise


class SessionTrust(Trustee):
    """Of one session. `trusting` None: nobody wants to know."""

    def __init__(
        self,
        trusting: TrustBundlePush | None,
        record: CertificateRecord,
        send: Callable[[wire.HubMessage], None],
        reconsider: Callable[[], None],
    ) -> None:
        self.trusted: frozenset[str] | None = None
        self._trusting = trusting
        self._record = record
        self._send = send
        self._reconsider = reconsider

    def reconsider(self) -> None:
        self._reconsider()

    def said(self, fingerprints: Iterable[str]) -> None:
        """What the agent trusts, as it says in Hello and TrustInstalled. Raises BadRequestError."""
        self.trusted = told(fingerprints)
        if self._trusting is not None:
            self._trusting.note(self._record, self.trusted)
            self._trusting.look(self)

    def push(self, bundle: bytes) -> None:
        self._send(wire.HubMessage(trust_bundle=wire.TrustBundle(certificates=bundle)))

    def end(self) -> None:
        if self._trusting is not None:
            self._trusting.leave(self)
