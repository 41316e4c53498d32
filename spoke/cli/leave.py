"""`spoke leave`: unregisters this cluster at all its hubs and deletes the agent's credentials. Safe to call again.

The order of the steps allows the next call to continue after any interruption:

1. Write `LeftMark` into the owner's Secret, which keeps the agent inactive.
2. When the agent's session has ended, take the agent's Lease. The Lease of a dead process expires.
3. Call Leave at every hub with the agent's credential for this hub.
4. Delete the credentials, those of add-ons first. Without `force`, slots of unreachable hubs stay. `LeftMark` stays.

`spoke rejoin` skips step 3 and keeps the credentials of add-ons. At the end it removes `LeftMark`, and the agent registers
again under the same names.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from machinery.election import Candidate, Lock
from machinery.election.elector import Observation
from machinery.errors import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    MethodNotAllowedError,
    MusterError,
    NotFoundError,
    UnavailableError,
)
from machinery.identity import AgentId, ClusterName, HubId
from machinery.meta.timestamps import format_time
from machinery.runtime.clock import Clock
from spoke.agent.unregistration import LeftMark, fingerprints, forget_departure, mark_in
from spoke.bootstraps.listing import Bootstraps
from spoke.cli.findings import DoctorStep, failed, passed
from spoke.credentials.kubeconfigs import ANY_REACH, HubConnection, stored_connection, stored_texts
from spoke.credentials.slot import OWNER_SECRET, Contents, Slot, credential_of, hub_slot
from spoke.domain.credential import AGENT_NAME, CLUSTER_NAME, LEFT, PENDING_REQUEST, REQUEST_NAME
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.domain.route import Reach
from spoke.ports.cluster import Cluster, CredentialDirectory, Remains, Secrets
from spoke.ports.hub import Dial

POLL = timedelta(milliseconds=250)
LEASE_DURATION = timedelta(seconds=15)
"""The command never renews the Lease that it takes: `LeftMark` keeps the agent inactive. At the end it deletes the Lease."""


@dataclass(slots=True)
class _Hub:
    credential: Contents = field(repr=False)
    connection: HubConnection
    owed: bool = True
    """Whether the hub was not notified yet, so that another call of `spoke leave` may notify it."""


@dataclass(slots=True)
class _Registration:
    """A hub that has not issued a credential yet. `request` names the certificate signing request, if its name is stored."""

    cluster: str
    agent: str
    request: str
    owed: bool = True
    """Whether another call may withdraw the registration."""


@dataclass(slots=True)
class Leave:
    """One run of leave or rejoin. `steps` yields the completed steps in order."""

    secrets: Secrets
    remains: Remains
    cluster: Cluster
    bootstraps: Bootstraps
    dial: Dial
    clock: Clock
    lock: Lock | None
    """The agent's Lease; None if the agent runs without leader election."""
    candidate: Candidate
    directory: CredentialDirectory | None = None
    reach: Reach = ANY_REACH
    cluster_name: str = ""
    force: bool = False
    rejoin: bool = False
    """Register again instead of leaving. Hubs and add-ons stay as they are."""
    within: timedelta = timedelta(seconds=30)
    """Time for the agent to stop, and for each hub to answer."""
    _hubs: dict[HubId, _Hub] = field(default_factory=dict, init=False)
    _registrations: dict[str, _Registration] = field(default_factory=dict, init=False)
    """Hubs that have issued no credential to the agent, by name of the slot."""
    _agent: str = field(default="", init=False)

    async def steps(self) -> AsyncGenerator[DoctorStep, None]:
        """Run all steps and yield each result. Raises MusterError if this cluster's API server fails."""
        await self._read_credentials()
        yield await self._mark_left()
        if self.lock is not None:
            yield (stopped := await self._stop_agent(self.lock))
            if not stopped.ok and not self.force:
                return
        if self.rejoin:
            yield await self._credentials()
            await forget_departure(self.secrets)
            restart = "restart the agent, which has no Lease: it registers again"
            yield passed("agent", "a running agent registers again now" if self.lock is not None else restart)
            return
        for hub in self._hubs.values():
            yield await self._notify(hub)
        for slot, registration in self._registrations.items():
            yield await self._withdraw(slot, registration)
        yield await self._addons()
        yield await self._credentials()

    async def _read_credentials(self) -> None:
        for name in (OWNER_SECRET, *await self.remains.slots()):
            contents = (await self.secrets.read(name)).contents
            cluster, agent = stored_texts(contents)
            self.cluster_name, self._agent = self.cluster_name or cluster, self._agent or agent
            credential = credential_of({key: value for key, value in contents.items() if key != LEFT})
            try:
                connection = stored_connection(credential, self.reach)
            except InvalidError:  # only a pending request, or nothing usable
                if PENDING_REQUEST in contents:
                    request = contents.get(REQUEST_NAME, b"").decode(errors="replace")
                    self._registrations[name] = _Registration(cluster, agent, request)
                continue
            self._hubs.setdefault(connection.hub_id, _Hub(credential, connection))

    async def _withdraw(self, slot: str, registration: _Registration) -> DoctorStep:
        """Withdraw the cluster and its request at a hub that has issued no credential. Uses the bootstrap credential."""
        listed = {hub_slot(self.secrets, each.hub_id).name: each for each in self.bootstraps.read().hubs}
        known = listed.get(slot)
        csr = f", and kubectl delete csr {registration.request}" if registration.request else ""
        if known is None:
            said = "the agent has registered there, and its bootstrap kubeconfig is not on the list any more"
            return failed(f"hub of {slot}", self._kept(said), f"{self._at_that_hub}{csr}")
        name = f"hub {known.connection.address.target}"
        client = self.dial(known.connection.address, known.connection.identity)
        try:
            uid = await self.cluster.uid()
            cluster, agent = ClusterName(registration.cluster), AgentId(registration.agent)
            gone = await _in_time(client.withdraw(AgentIdentity(AgentNames(cluster, agent), uid)), self.within)
        except (MethodNotAllowedError, ForbiddenError) as error:
            registration.owed = False
            said = f"the cluster and its request stay; the hub does not allow the agent to withdraw them: {error.message}"
            return failed(name, said, f"{self._at_that_hub}{csr}")
        except MusterError as error:
            return failed(name, self._kept(f"not reached: {error.message}"), f"{self._at_that_hub}{csr}")
        finally:
            await client.close()
        registration.owed = False
        if not gone:
            said = "the request is withdrawn; the cluster stays, because an operator has decided about it"
            return failed(name, said, self._at_that_hub)
        return passed(name, "the agent had only registered there: the cluster and its request are withdrawn")

    def _kept(self, said: str) -> str:
        return said if self.force else f"{said}; the registration is kept, so that `spoke leave` can be called again"

    @property
    def _at_that_hub(self) -> str:
        return f"at that hub: hubctl delete cluster {self.cluster_name} (or kubectl delete managedcluster {self.cluster_name})"

    async def _mark_left(self) -> DoctorStep:
        owner = Slot(self.secrets, OWNER_SECRET)
        await self.bootstraps.load()
        known, before = fingerprints(self.bootstraps), mark_in(await owner.read())
        at = before.at if before is not None and before.at else format_time(self.clock.now())
        known |= before.known if before is not None else frozenset()
        mark = LeftMark(at, known)
        await owner.change(lambda present: {**present, LEFT: mark.content()})
        if self.rejoin:
            return passed("agent", f'to stay away until its credentials are deleted, by secret "{OWNER_SECRET}"')
        again = "it was before" if before is not None else "it stays away until there is a new bootstrap kubeconfig"
        return passed("agent", f'marked to stay away, in secret "{OWNER_SECRET}": {again}')

    async def _stop_agent(self, lock: Lock) -> DoctorStep:
        """Take the Lease when it has no holder, or was not renewed for its duration. Then no process of the agent works."""
        holder, seen = "", Observation(self.candidate)
        try:
            async with asyncio.timeout(self.within.total_seconds()):
                while True:
                    record = await lock.read()
                    seen.observe(record, self.clock.monotonic())
                    if record is None or self.clock.monotonic() >= seen.free_at():
                        try:
                            await lock.take(record, self.candidate, LEASE_DURATION)
                        except ConflictError:
                            continue
                        return passed("session", "ended: no process of the agent works any more")
                    holder = record.holder
                    await asyncio.sleep(POLL.total_seconds())
        except TimeoutError:
            said = f"{holder} still holds the agent's Lease after {self.within.total_seconds():g} s"
            advice = "look at its log, or stop it; call `spoke leave` again, with a --timeout longer than the Lease's duration"
            return failed("session", said, advice)

    async def _notify(self, hub: _Hub) -> DoctorStep:
        connection = hub.connection
        name = f"hub {connection.address.target}"
        operator = self._at_that_hub
        client = self.dial(connection.address, connection.identity)
        try:
            uid = await self.cluster.uid()
            cluster, agent = ClusterName(self.cluster_name), AgentId(self._agent)
            known = await _in_time(client.leave(AgentIdentity(AgentNames(cluster, agent), uid)), self.within)
        except NotFoundError:
            known = False
        except MethodNotAllowedError as error:
            hub.owed = False
            return failed(name, f"it cannot be notified: {error.message}", operator)
        except MusterError as error:
            retry = "" if self.force else "; its credential is kept, so that `spoke leave` can be called again"
            return failed(name, f"not notified: {error.message}{retry}", operator)
        finally:
            await client.close()
        hub.owed = False
        return passed(name, "it was notified, and has released this cluster" if known else "it does not know this cluster")

    async def _addons(self) -> DoctorStep:
        if not self.cluster_name:
            return passed("add-ons", "there are none, because this cluster has no name yet")
        places = await self.remains.addons(ClusterName(self.cluster_name))
        for place in places:
            await self.remains.remove(place)
        names = ", ".join(f"{place.namespace}/{place.name}" for place in places)
        return passed("add-ons", f"deleted {names}" if names else "they have no credentials here")

    async def _credentials(self) -> DoctorStep:
        """Delete the mirror, the Lease, slots, and the owner's secret except its mark. Keep slots that another call needs."""
        owed = [] if self.force or self.rejoin else [hub for hub in self._hubs.values() if hub.owed]
        keeps = {hub_slot(self.secrets, hub.connection.hub_id).name: hub.credential for hub in owed}
        for name, credential in keeps.items():
            await Slot(self.secrets, name).change(partial(_replaced, credential))  # without a pending request
        forgets = self.force or self.rejoin
        owing = [name for name, each in self._registrations.items() if each.owed and not forgets and name not in keeps]
        for name in await self.remains.slots():
            if name not in (*keeps, *owing):
                await self.secrets.delete(name)
        if self.directory is not None:
            self.directory.replace({})
        stays = (LEFT, CLUSTER_NAME, AGENT_NAME) if self.rejoin else (LEFT,)
        owner = Slot(self.secrets, OWNER_SECRET)
        await owner.change(lambda present: {key: present[key] for key in stays if key in present})
        await self.remains.forget_lease()
        kept = f", but {', '.join((*keeps, *owing))} for hubs that are not notified yet" if keeps or owing else ""
        return passed("credentials", f"deleted{kept}")


def _replaced(credential: Contents, _present: Contents) -> Contents:
    return credential


async def _in_time(work: Awaitable[bool], within: timedelta) -> bool:
    try:
        async with asyncio.timeout(within.total_seconds()):
            return await work
    except TimeoutError:
        raise UnavailableError("no answer in time") from None
