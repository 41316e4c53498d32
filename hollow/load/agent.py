"""One simulated agent. Its credential, sessions and reconnects are those of a real agent, but it has no cluster.

It uses the client of the real agent, the flow for certificates, and the rules for beats, renewals and pauses. It has its own
loop, because it must need only a hundredth of the resources of a real agent. `hollow load --help` lists what it does not
simulate.
"""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import cast

from hollow.load.session import AgentParts, BeatState, LoadSession, SessionConnection
from hollow.objects import ClusterShape
from machinery.errors import ConflictError, InvalidError, MusterError
from machinery.pki import CertificateFacts, parse_chain
from machinery.runtime.clock import OffsetClock
from spoke.credentials.judgement import rejection
from spoke.credentials.kubeconfigs import stored_texts
from spoke.credentials.slot import Contents, Slot
from spoke.credentials.trust_bundle import fingerprints
from spoke.domain.credential import CERTIFICATE, KEY
from spoke.domain.hubs import HubState, ListedHub
from spoke.domain.names import AgentIdentity, choose_names, fresh_agent_id
from spoke.domain.next_step import SessionLoss
from spoke.domain.schedule import RenewalTime
from spoke.options import Pauses
from spoke.ports.hub import ClientIdentity, HubClient, HubLostError, SessionHello
from spoke.registration.csr_flow import CSRFlow, RequestDeniedError, WantedCertificate, names_contents
from spoke.transports import OpenSession

PAUSES = Pauses()
TRUST = "trust.crt"
"""Name of the stored entry with the hub's CAs (PEM). It exists only if the hub has announced other CAs since the join."""
trusted_by = lru_cache(maxsize=16)(fingerprints)


class LoadAgent:
    """A simulated agent. It stores its names and its credential for later runs."""

    def __init__(self, name: str, parts: AgentParts) -> None:
        self._parts = parts
        self._dial = parts.dialer()
        self._shape = ClusterShape(name)
        self._slot = Slot(parts.secrets, name)
        self._agent: AgentIdentity | None = None
        self._address = parts.hub.address
        self._identity: ClientIdentity | None = None
        self._chain: tuple[CertificateFacts, ...] = ()
        self._joining: CSRFlow | None = None
        self._hub_clock = OffsetClock(parts.clock)
        pauses = (PAUSES.retry, PAUSES.denied, PAUSES.refused, PAUSES.unwelcome)
        self._retry, self._denied, self._superseded, self._unwelcome = (each.backoff(parts.random) for each in pauses)
        self._beats = BeatState()
        self._session: LoadSession | None = None
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._since = 0.0
        """Start of the agent, or of its last join."""
        self._lost_at: float | None = None

    async def run(self) -> None:
        """Join if there is no credential. Then hold a session until cancelled."""
        self._since = self._now()
        while True:
            await self._speaks.wait()
            try:
                session: LoadSession | None = await self._connect()
                while session is not None:
                    self._session = session
                    session = await session.serve()
            except HubLostError as lost:
                delay = await self._lost(lost)
            except MusterError as error:
                self._parts.measures.fail(f"join: {error.reason}", error.message)
                delay = (self._denied if isinstance(error, RequestDeniedError) else self._retry).next()
                delay = max(delay, error.retry_after or delay)
            finally:
                self._session = None
            await asyncio.sleep(delay.total_seconds())

    def drop(self, *, silent: bool = False) -> None:
        """Break the session's connection. `silent`: do not reconnect before `resume`."""
        if silent:
            self._speaks.clear()
        if self._session is not None:
            self._session.drop()

    def resume(self) -> None:
        """End the silence that `drop` began. Beats that were due during the silence do not count as lost."""
        self._beats.due = self._lost_at = None
        self._speaks.set()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    async def _connect(self) -> LoadSession:
        """Open a session with the stored credential; if there is none, join first. Raises MusterError."""
        if self._agent is None:
            self._restore(await self._slot.read())
        if self._identity is None:
            await self._join()
        session = await self.open_session()
        if self._lost_at is not None:
            self._parts.measures.observe("reconnect", self._now() - self._lost_at)
            self._lost_at = None
        return session

    def _restore(self, contents: Contents) -> None:
        """Read the names and, if present, the credential of an earlier run."""
        fresh = (self._shape.name, fresh_agent_id(self._parts.random.getrandbits(64)))
        names = choose_names(options=("", ""), stored=stored_texts(contents), fresh=fresh)
        self._agent = AgentIdentity(names, self._shape.cluster_uid)
        if CERTIFICATE in contents and KEY in contents:
            self._use(contents)

    def _use(self, contents: Contents) -> None:
        self._identity = ClientIdentity(contents[CERTIFICATE], contents[KEY])
        self._chain = parse_chain(contents[CERTIFICATE])
        if contents.get(TRUST):
            self._address = replace(self._address, ca=contents[TRUST])

    def _flow(self, agent: AgentIdentity, *, joins: bool = False) -> CSRFlow:
        wanted = WantedCertificate(agent, agent.names.subject, ensure_cluster=joins)
        return CSRFlow(wanted, pending=self._slot, target=self._slot, extra=names_contents(agent.names))

    async def _join(self) -> None:
        """Register with the bootstrap credential, as `spoke.registration.register` does. Raises MusterError."""
        if self._agent is None:
            raise AssertionError
        if self._joining is None:
            self._joining = self._flow(self._agent, joins=True)
            self._joining.resume(await self._slot.read())
        hub = self._parts.hub
        client = self._dial(self._address, hub.identity)
        try:
            info = await client.info()
            self._hub_clock.set_time(info.time)
            if info.hub_id and info.hub_id != hub.hub_id:
                raise ConflictError(f"the hub has the id {info.hub_id}, but the bootstrap kubeconfig is for {hub.hub_id}")
            if info.attestation_audience:
                raise InvalidError("the hub demands attestation, and agents of a load have no cluster that could attest them")
            await self._joining.run(client)
        finally:
            await client.close()
        self._use(self._joining.credential)
        self._joining = None
        self._denied.reset()
        self._parts.measures.counts["joins"] += 1
        self._parts.measures.observe("join", self._now() - self._since)

    async def open_session(self) -> LoadSession:
        """Open a session with the present credential. Raises HubLostError."""
        if self._agent is None or self._identity is None:
            raise AssertionError
        hub, leaf, began = self._parts.hub, self._chain[0], self._now()
        client = self._dial(self._address, self._identity)
        listed = ListedHub(hub.hub_id, Path(hub.source).stem, hub.hub.server, HubState.READY, leaf.not_after)
        hello = SessionHello(self._agent.cluster_uid, hubs=(listed,), trusted=trusted_by(self._address.ca))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(client.close)
            try:
                async with self._parts.opening:
                    session = cast("OpenSession", await stack.enter_async_context(client.session(hello)))
            except HubLostError:
                raise
            except MusterError as error:
                raise HubLostError(error.message) from error
            self._hub_clock.set_time(self._parts.clock.now() + session.hub_time_offset)
            self._parts.measures.counts["sessions"] += 1
            self._parts.measures.observe("open", self._now() - began)
            due = RenewalTime(leaf.serial, leaf.not_before, leaf.not_after)
            link = SessionConnection(client, session, stack.pop_all())
            return LoadSession(link, self._parts, self._beats, renewal=due, hub_clock=self._hub_clock, owner=self)
        raise AssertionError

    async def renew(self, client: HubClient) -> None:
        """Obtain the next certificate with the present certificate. Raises MusterError."""
        if self._agent is None:
            raise AssertionError
        flow = self._flow(self._agent)
        flow.resume(await self._slot.read())
        await flow.run(client)
        self._use(flow.credential)
        self._parts.measures.counts["renewals"] += 1

    async def trust(self, bundle: bytes) -> None:
        """Store the CAs that verify the hub from now on."""
        await self._slot.change(lambda present: {**present, TRUST: bundle})
        self._address = replace(self._address, ca=bundle)

    async def _lost(self, lost: HubLostError) -> timedelta:
        """Return the pause after the loss of a session, by the rules of `spoke.session.supervisor`."""
        broken = self._session is not None and self._session.is_dropped
        if self._session is not None and self._session.has_beaten:
            self._retry.reset()
        if not broken:
            self._parts.measures.fail(f"session: {lost.loss.name.lower()}", lost.message)
        if self._lost_at is None:
            self._lost_at = self._now()
        if rejection(lost.loss, lost.message, self._chain, self._hub_clock.now()) is not None:
            self._identity, self._since = None, self._now()
            await self._slot.delete()  # the agent joins again
        pauses = {SessionLoss.REFUSED: self._unwelcome, SessionLoss.SUPERSEDED: self._superseded}
        delay = pauses.get(lost.loss, self._retry).next()
        return max(delay, lost.retry_after or delay)
