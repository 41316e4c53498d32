"""Records which CAs each agent trusts, and pushes the hub's trust bundle to agents whose CAs differ from it.

The hub pushes a changed bundle at a bounded rate, because each agent tests the bundle with a handshake, writes it into its
cluster and answers. Sessions wait in a queue. Agents that do not report their CAs get no bundle. An agent that refused the
bundle gets it again after `RESEND_AFTER`, and in its next session.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import lru_cache
from typing import Protocol

from hub.api.certificates import CertificateRecord
from hub.grpc_door.session.report_writer import ReportWriter
from hub.ports import Store
from hub.registry.certificateauthorities import service
from hub.registry.certificateauthorities.service import TrustReport
from machinery.identity import AgentId, ClusterName
from machinery.pki import parse_chain
from machinery.runtime.event_loop import paced, until_tick

BUNDLES_PER_SECOND = 50.0
"""Bundles per second of one replica: ten thousand agents take 200 seconds."""
POLL = timedelta(seconds=1)
"""Interval at which the hub's bundle is compared with the pushed bundle."""
RESEND_AFTER = timedelta(minutes=10)
"""An agent that did not take the bundle gets it again at the first check (`CHECK_PERIOD`) after this time."""
CHECK_PERIOD = timedelta(minutes=1)
"""Interval at which all sessions are checked while the bundle stays the same."""
REFRESHES_PER_SECOND = 500.0
"""Sessions per second that are refreshed after a change of one of the hub's CAs."""
_Agent = tuple[ClusterName | None, AgentId | None]


@lru_cache(maxsize=8)
def fingerprints(bundle: bytes) -> frozenset[str]:
    """Returns the hex SHA-256 of the DER of each CA certificate in a trust bundle (PEM)."""
    return frozenset(each.fingerprint for each in parse_chain(bundle))


class TrustBundleReceiver(Protocol):
    """The interface of an open session for `TrustBundlePush`."""

    trusted: frozenset[str] | None
    """Fingerprints of the CAs that the agent last reported as trusted; None: the agent does not report its CAs."""

    def push(self, bundle: bytes) -> None: ...

    def reconsider(self) -> None:
        """Make the session read its cluster again after a change of the CAs, because the agent may have to renew."""


class TrustBundlePush:
    """The queue of sessions that wait for the bundle, and the reports that wait to be written. One per process."""

    def __init__(self, store: Store, bundle: Callable[[], bytes], *, authorities: Callable[[], object] = lambda: None) -> None:
        """`bundle`: returns the trust bundle (PEM). `authorities`: returns the hub's CAs; a different result means a change."""
        self._store = store
        self._bundle = bundle
        self._authorities = authorities
        self._open: dict[TrustBundleReceiver, tuple[float, bytes]] = {}
        self._queue: dict[TrustBundleReceiver, None] = {}
        self.reports = ReportWriter(self._write, "trusted CAs of agents cannot be stored")
        self._waiting = asyncio.Event()
        self.pushed = 0
        """Number of bundles sent."""

    def __len__(self) -> int:
        """Number of sessions that wait for the bundle."""
        return len(self._queue)

    async def _write(self, reports: Mapping[_Agent, TrustReport]) -> None:
        """Writes the reports. If none of them is new, only reads the database."""
        if await self._store.read(service.trust_news, reports.values()):
            await self._store.run(service.note_trust, reports.values())

    def note(self, record: CertificateRecord, trusted: frozenset[str] | None) -> None:
        """Queues the fingerprints of the CAs that the certificate's agent trusts. None: the agent does not report them."""
        self.reports.put((record.cluster, record.agent), TrustReport(record, trusted))

    def check(self, session: TrustBundleReceiver) -> None:
        """Adds a session to the queue if its agent's CAs differ from those of the hub's bundle."""
        self._open.setdefault(session, (0.0, b""))
        if self._needs(session):
            self._queue[session] = None
            self._waiting.set()

    def leave(self, session: TrustBundleReceiver) -> None:
        self._open.pop(session, None)
        self._queue.pop(session, None)

    async def run(self) -> None:
        """Until cancelled, pushes bundles, checks the hub's bundle and CAs for changes, and stores what CAs agents trust."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._push(), name="trust/push")
            group.create_task(self._follow(), name="trust/bundle")
            group.create_task(self.reports.run(), name="trust/reports")

    async def _push(self) -> None:
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            while self._queue:
                session = next(iter(self._queue))
                del self._queue[session]
                if self._needs(session):
                    bundle = self._bundle()
                    self._open[session] = asyncio.get_running_loop().time(), bundle
                    session.push(bundle)
                    self.pushed += 1
                await asyncio.sleep(1 / BUNDLES_PER_SECOND)

    async def _follow(self) -> None:
        """Checks all sessions when the bundle changes, and every `CHECK_PERIOD` for agents that did not take it."""
        loop = asyncio.get_running_loop()
        seen, at, authorities = self._bundle(), loop.time(), self._authorities()
        while True:
            await asyncio.sleep(until_tick(POLL))
            if self._authorities() != authorities:
                authorities = self._authorities()
                async for session in paced(tuple(self._open), REFRESHES_PER_SECOND):
                    session.reconsider()
            bundle = self._bundle()
            if bundle != seen or loop.time() - at > CHECK_PERIOD.total_seconds():
                seen, at = bundle, loop.time()
                for session in tuple(self._open):
                    self.check(session)

    def _needs(self, session: TrustBundleReceiver) -> bool:
        if session not in self._open or session.trusted is None:
            return False
        at, bundle = self._open[session]
        present = self._bundle()
        is_fresh = bundle == present and asyncio.get_running_loop().time() - at < RESEND_AFTER.total_seconds()
        return not is_fresh and session.trusted != fingerprints(present)
