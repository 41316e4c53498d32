"""Reads the state at the start of a round of the agent's loop: hub list, owner's secret, chosen hub and its credential."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import timedelta

from machinery.identity import HubId
from spoke.bootstraps.listing import BootstrapListing
from spoke.credentials.judgement import CredentialJudge
from spoke.credentials.kubeconfigs import HubConnection, view_stored
from spoke.credentials.owner import Owner, OwnerRecord, agreed
from spoke.credentials.slot import OWNER_SECRET, Contents, Slot, credential_of, hub_slot
from spoke.domain.credential import CredentialFinding
from spoke.domain.hubs import HubDecision, HubState
from spoke.domain.names import AgentIdentity
from spoke.domain.next_step import AgentState
from spoke.registration.register import Naming, Registration
from spoke.session.context import AgentContext


@dataclass(slots=True)
class Observation:
    """The state that a round of the agent's loop has read: the list of hubs, the owner's secret, the slot of the chosen hub.

    `kept`: content of this slot. `contents`: the credential for the hub. `finding`: the defect of the credential; None: it is
    usable. `route`: the connection for a registration. `is_new`: this round has registered. `rest`: time to wait first.
    """

    listing: BootstrapListing
    owner: Owner = field(default_factory=Owner)
    hub: HubId | None = None
    decision: HubDecision | None = None
    rest: timedelta = timedelta()
    kept: Contents = field(default_factory=dict)
    contents: Contents = field(default_factory=dict)
    identity: AgentIdentity | None = None
    finding: CredentialFinding | None = None
    route: HubConnection | None = None
    is_new: bool = False


class Observer:
    """Reads the stored state for each round of the agent's loop. `judges` check the stored credentials, one for each hub."""

    def __init__(self, agent: AgentContext, registration: Registration) -> None:
        self.record = OwnerRecord(agent.ports.secrets, agent.hub_clock, agent.ports.clock)
        self.judges: defaultdict[HubId, CredentialJudge] = defaultdict(CredentialJudge)
        self.timed_by: HubId | None = None
        """The hub whose time the agent's hub clock shows."""
        self._agent = agent
        self._registration = registration
        self._naming = Naming(agent.options, agent.ports.directory)
        self._cluster_uid = ""

    async def observe(self) -> Observation:
        """Read the state for one round. Raises MusterError when a secret or the cluster cannot be read."""
        agent = self._agent
        agent.progress.enter("reading the stored credential")
        seen = Observation(agent.bootstrap.read())
        seen.owner, uid, _ = await asyncio.gather(self.record.read(), self._uid(), agent.watch.probe())
        await self._choose(seen)
        if seen.hub is not None and not seen.rest:
            await self._read_credential(seen, seen.hub, uid)
        return seen

    async def _uid(self) -> str:
        self._cluster_uid = self._cluster_uid or await self._agent.ports.managed_cluster.uid()
        return self._cluster_uid

    async def _choose(self, seen: Observation) -> None:
        hubs, listing, owner = self._agent.hubs, seen.listing, seen.owner
        hubs.update(listing, owner)
        if owner.hub_id is not None and not hubs.met(owner.hub_id):
            hubs.record_state(owner.hub_id, HubState.READY)
        if hubs.several and not self._agent.options.standby_registration:
            # Without standby registration, only the slots show the state of the other hubs.
            for hub in listing.hubs:
                if hub.hub_id != owner.hub_id and not hubs.met(hub.hub_id):
                    kept = view_stored(await hub_slot(self._agent.ports.secrets, hub.hub_id).read())
                    hubs.record_state(hub.hub_id, HubState.READY if kept.chain else HubState.REGISTERING)
        seen.decision = decision = hubs.decide()
        if decision is None or not hubs.several:
            seen.hub = listing.hubs[0].hub_id if listing.hubs else owner.hub_id
            return
        seen.hub = decision.hub_id
        if decision.not_before is not None:
            seen.rest = max(decision.not_before - self._agent.ports.clock.now(), timedelta())

    async def _read_credential(self, seen: Observation, hub: HubId, uid: str) -> None:
        slot, owner, listing = hub_slot(self._agent.ports.secrets, hub), seen.owner, seen.listing
        seen.kept = await slot.read()
        if hub == owner.hub_id:
            owned = Slot(self._agent.ports.secrets, OWNER_SECRET)
            seen.contents = await agreed(owned, slot, hub, held=owner.contents, kept=seen.kept)
            seen.owner = owner = replace(owner, contents=seen.contents)
        else:
            seen.contents = credential_of(seen.kept)
        others = [] if credential_of(owner.contents) else [each for each in listing.hubs if each.hub_id != hub]
        asked = [seen.kept, *[await hub_slot(self._agent.ports.secrets, each.hub_id).read() for each in others]]
        names = self._naming.choose(owner.contents, asked, listing)
        seen.identity = AgentIdentity(names, uid)
        bootstrap = listing.get(hub)
        is_hub_time = self._agent.hub_clock.offset is not None and hub == self.timed_by
        seen.finding = self.judges[hub].judge(
            seen.contents,
            bootstrap.connection.hub if bootstrap else None,
            names,
            self._agent.hub_clock.now(),
            is_hub_time=is_hub_time,
        )
        if seen.finding is not None:
            seen.route = self._registration.route(
                seen.contents, names, seen.finding, bootstrap.connection if bootstrap else None
            )
        self._agent.hubs.attend(listing, owner, hub, seen.identity)

    def state_of(self, seen: Observation) -> AgentState:
        owner = seen.owner
        return AgentState(
            seen.hub,
            rests=bool(seen.rest),
            is_flawed=seen.finding is not None,
            can_register=seen.route is not None,
            is_new=seen.is_new,
            owner=owner.hub_id,
            needs_epoch=(not owner.epoch and self._agent.hubs.several) or not self.record.has_accepted_epoch(owner),
        )
