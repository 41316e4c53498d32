"""What changes about add-ons while they have credentials: subject, place, hub, driver. None is ever without one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from machinery.errors import MusterError
from machinery.identity import AddOnName, AgentId, ClusterName, HubId
from machinery.meta.conditions import CERTIFICATE_ROTATED
from machinery.pki import parse_certificate
from spoke.controllers.addons import AddOnCertificates, AddOnCredentials, AddOnLeaseController
from spoke.credentials.slot import Slot
from spoke.domain.addon import CSR, KUBE_SIGNER, AddOn, AddOnRegistration
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.options import AddOnCare
from spoke.ports.cluster import RefusedSecretError, Secrets, SecretSnapshot
from spoke.ports.hub import ClientIdentity, Greeting
from spoke.registration.addon_credentials import AddOnContext
from tests.fakes.cluster import MemoryCluster
from tests.fakes.credentials import MemorySecrets
from tests.fakes.hub import MemoryHub, MemorySession
from tests.fakes.stage import Stage

LOGS = AddOnName("logs")
CLUSTER, AGENT = ClusterName("c1"), AgentId("bcdfg")
NAMES = AgentNames(CLUSTER, AGENT)
FOR_HUB = AddOnRegistration(KUBE_SIGNER, "system:logs", ("logs",), driver=CSR)
CUSTOM = AddOnRegistration("example.com/signer", "user")
CARE = AddOnCare()
SECRET, OTHER = "logs-hub-kubeconfig", "logs-example.com-signer-client-cert"


class Place:
    """The namespaces of both clusters, and what lies where."""

    def __init__(self) -> None:
        self.secrets: dict[tuple[str, bool], MemorySecrets] = {}
        self.pending = MemorySecrets()
        self.certificates = AddOnCredentials()

    def of(self, addon: AddOn) -> Secrets:
        return self.at(addon.namespace, hosted=addon.hosted)

    def at(self, namespace: str, *, hosted: bool = False) -> MemorySecrets:
        return self.secrets.setdefault((namespace, hosted), MemorySecrets())


@dataclass
class Run:
    """The controller on one session with a hub."""

    session: MemorySession
    controller: AddOnCertificates

    async def look(self, *addons: AddOn) -> None:
        self.controller.set_addons(addons)
        for name in self.controller.names:
            await self.controller.reconcile(name)


@asynccontextmanager
async def at(hub: MemoryHub, place: Place, care: AddOnCare = CARE) -> AsyncIterator[Run]:
    credential = hub.credential(NAMES.subject)
    client = hub.dial(None, ClientIdentity(credential.chain, credential.key))
    await client.ensure_cluster(AgentIdentity(AgentNames(CLUSTER, AGENT), "uid"), endpoints=(), annotations={})
    registered = AddOnContext(
        agent=AgentIdentity(NAMES, "uid"),
        kubeconfig=b"clusters: [{name: %s}]" % hub.hub_id.encode(),
        secrets=place.of,
        pending=lambda secret: Slot(place.pending, f"{secret}-{hub.hub_id[:8]}"),
        hub_id=hub.hub_id,
        care=care,
    )
    async with client.session(Greeting("uid")) as session:
        assert isinstance(session, MemorySession)
        yield Run(session, AddOnCertificates(client, session, registered, place.certificates, hub.clock))


def leaf(secrets: MemorySecrets, name: str = SECRET) -> str:
    return parse_certificate(secrets.contents(name)["tls.crt"]).subject.common_name


async def test_changed_subject_or_namespace_leaves_the_old_credential_until_the_new_one_is_there(stage: Stage) -> None:
    """OCM deletes the secret first."""
    place, addon = Place(), AddOn(LOGS, "old", registrations=(FOR_HUB,))
    changed = replace(addon, registrations=(replace(FOR_HUB, user="system:other"),))
    moved = replace(changed, install_namespace="new")
    async with at(stage.hub, place) as run:
        await run.look(addon)
        stage.hub.away = True
        with pytest.raises(MusterError):
            await run.look(changed)
        assert leaf(place.at("old")) == "system:logs"
        stage.hub.away = False
        await run.look(changed)
        assert leaf(place.at("old")) == "system:other"
        assert place.at("old").deleted == []
        stage.hub.away = True
        with pytest.raises(MusterError):
            await run.look(moved)
        assert place.at("old").names == {SECRET}
        stage.hub.away = False
        await run.look(moved)
    assert (place.at("old").names, place.at("new").names) == (set(), {SECRET})


async def test_secret_that_the_agent_may_not_touch_is_a_condition_of_the_addon_until_it_may(stage: Stage) -> None:
    place, refused = Place(), True
    reserved = AddOn(AddOnName("bootstrap"), "x", registrations=(FOR_HUB,))

    class Foreign(MemorySecrets):
        async def read(self, name: str) -> SecretSnapshot:
            if refused:
                raise RefusedSecretError(f"{name} is somebody else's")
            return await super().read(name)

    place.secrets["x", False] = secrets = Foreign()
    async with at(stage.hub, place) as run:
        addon = AddOn(LOGS, "x", registrations=(FOR_HUB,))
        for _ in range(2):
            await run.look(addon, reserved)
        told = {name: [each.message for each in conditions] for name, conditions in run.session.addon_reports}
        assert told[LOGS] == [f"{SECRET} is somebody else's"]
        assert len(run.session.addon_reports) == len(told) == 2, "once each"
        assert "reserved for the agent" in told[reserved.name][0]
        assert secrets.names == set()
        refused = False
        await run.look(addon, reserved)
    assert secrets.names == {SECRET}


async def test_from_the_managed_cluster_to_a_hosting_one_and_back(stage: Stage) -> None:
    place, addon = Place(), AddOn(LOGS, "x", registrations=(FOR_HUB,))
    hosted = replace(addon, hosting_cluster_name="big")
    async with at(stage.hub, place) as run:
        for wanted in (addon, hosted, addon):
            await run.look(wanted)
            here, there = place.at("x", hosted=wanted.hosted), place.at("x", hosted=not wanted.hosted)
            assert (here.names, there.names) == ({SECRET}, set())
        await run.look(hosted)
        await run.look()
    assert (place.at("x").names, place.at("x", hosted=True).names) == (set(), set())


async def test_after_a_move_the_credentials_are_the_new_hubs_and_the_old_ones_last_until_then(stage: Stage) -> None:
    place, addon = Place(), AddOn(LOGS, "logging", registrations=(FOR_HUB, CUSTOM))
    second = MemoryHub(stage.clock, hub_id=HubId("1f1e2d3c-0000-4000-8000-000000000002"))
    async with at(stage.hub, place) as run:
        await run.look(addon)
    before = {name: dict(place.at("logging").contents(name)) for name in (SECRET, OTHER)}
    async with at(second, place) as run:
        second.away = True
        with pytest.raises(MusterError):
            await run.look(addon)
        assert {name: dict(place.at("logging").contents(name)) for name in (SECRET, OTHER)} == before
        second.away = False
        for _ in range(2):
            await run.look(addon)
            assert len(second.issued) == 2
    after = place.at("logging")
    assert second.hub_id.encode() in after.contents(SECRET)["kubeconfig"]
    serials = {parse_certificate(after.contents(name)["tls.crt"]).serial for name in (SECRET, OTHER)}
    assert serials == set(second.issued)
    assert after.deleted == []
    assert not place.pending.names


async def test_one_registration_more_or_less_and_a_secret_without_its_hub_replace_no_other_credential(stage: Stage) -> None:
    place, both = Place(), AddOn(LOGS, "logging", registrations=(FOR_HUB, CUSTOM))
    async with at(stage.hub, place) as run:
        await run.look(both)
        before = place.at("logging").contents(SECRET)
        await run.look(replace(both, registrations=(FOR_HUB,)))
        assert place.at("logging").names == {SECRET}
        await run.look(both)
    kept = place.at("logging")
    assert kept.contents(SECRET) == before
    assert kept.names == {SECRET, OTHER}
    issued, stored = len(stage.hub.issued), await kept.read(OTHER)
    without = {key: value for key, value in stored.contents.items() if key != "hub-id"}
    await kept.write(OTHER, without, stored.version)  # as an earlier release wrote it
    place.certificates = AddOnCredentials()
    async with at(stage.hub, place) as run:
        await run.look(both)
    assert len(stage.hub.issued) == issued


async def test_a_hub_that_does_not_keep_the_driver_is_told_once_and_served_all_the_same(stage: Stage) -> None:
    place, addon = Place(), AddOn(LOGS, "logging", registrations=(replace(FOR_HUB, driver="token"),), account_uid="u")
    async with at(stage.hub, place, AddOnCare(driver=CSR)) as run:
        await run.look(addon)
        assert run.session.addon_reports == [(LOGS, ())]
        for _ in range(2):
            await run.look(addon)
        assert [entry.type for _, told in run.session.addon_reports for entry in told] == [CERTIFICATE_ROTATED]
    assert leaf(place.at("logging")) == "system:logs"


async def test_leases_are_read_where_the_add_on_is_hosted_and_their_grace_is_a_setting(stage: Stage) -> None:
    management, near = MemoryCluster(), AddOnName("near")
    management.leases["x", LOGS] = stage.clock.now()
    async with at(stage.hub, Place()) as run:
        grace = AddOnCare().lease_grace / 10
        controller = AddOnLeaseController(run.session, stage.cluster, management, stage.clock, grace=grace)
        controller.set_addons([AddOn(LOGS, "x", hosting_cluster_name="big"), AddOn(near, "x")])
        for name in (LOGS, near):
            await controller.reconcile(name)
        stage.clock.advance(grace * 2)
        await controller.reconcile(LOGS)
        told = [(name, entry.reason) for name, entries in run.session.addon_reports for entry in entries]
    assert told == [
        (LOGS, "ManagedClusterAddOnLeaseUpdated"),
        (near, "ManagedClusterAddOnLeaseNotFound"),
        (LOGS, "ManagedClusterAddOnLeaseUpdateStopped"),
    ]
