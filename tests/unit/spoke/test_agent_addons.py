"""Add-ons: what their leases report, the certificates and tokens that they are given, and what changes while they have them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import yaml

from machinery.client.kubeconfig import parse_kubeconfig
from machinery.errors import ForbiddenError, MusterError, UnavailableError
from machinery.identity import AddOnName, AgentId, ClusterName, HubId
from machinery.meta.conditions import ADDON_AVAILABLE, CERTIFICATE_ROTATED, FALSE, TRUE, UNKNOWN
from machinery.pki import CertificateFacts, key_matches, parse_certificate, unverified_claims
from spoke.controllers.addons import AddOnCertificates, AddOnCredentials, AddOnLeaseController
from spoke.credentials.slot import Slot
from spoke.domain.addon import CSR, GRACE, KUBE_SIGNER, TOKEN, TOKEN_REFRESHED, AddOn, AddOnRegistration, token_due, uid_in
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.domain.schedule import rotate_at
from spoke.options import AddOnOptions
from spoke.ports.cluster import RefusedSecretError, Secrets
from spoke.ports.hub import ClientIdentity, HubLostError, SessionHello
from spoke.registration.addon_credentials import AddOnContext
from tests.checks import check_refusal_of
from tests.fakes.credentials import MemoryCluster, MemorySecrets
from tests.fakes.hub import MemoryHub, MemorySession, service_account_token
from tests.fakes.stage import Stage, is_available, until

LOGS = AddOnName("logs")
HUB_ACCESS = AddOnRegistration(KUBE_SIGNER, "system:logs", ("logs",))
CUSTOM = AddOnRegistration("example.com/signer", "user", (), ("unit",))
SECRET, OTHER = "logs-hub-kubeconfig", "logs-example.com-signer-client-cert"
NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
BY_TOKEN = AddOnRegistration(KUBE_SIGNER, "system:logs", ("logs",), driver=TOKEN)
NOBODY: dict[str, Any] = {"kubernetes.io": None}
CLUSTER, AGENT = ClusterName("c1"), AgentId("bcdfg")
NAMES = AgentNames(CLUSTER, AGENT)
FOR_HUB = AddOnRegistration(KUBE_SIGNER, "system:logs", ("logs",), driver=CSR)
OTHER_CUSTOM = AddOnRegistration("example.com/signer", "user")
CARE = AddOnOptions()


def statuses_of(stage: Stage, kind: str) -> list[str]:
    """The statuses of a condition of the add-on, as reported to the hub in all sessions."""
    return [
        entry.status
        for session in stage.hub.sessions
        for name, conditions in session.addon_reports
        for entry in conditions
        if name == LOGS and entry.type == kind
    ]


async def test_an_addon_is_reported_as_its_lease_says_and_only_at_a_change(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging"),)
    async with stage.running():
        await until(lambda: statuses_of(stage, ADDON_AVAILABLE) == [UNKNOWN])
        stage.cluster.leases["logging", "logs"] = stage.clock.now()
        stage.scheduler.wake("addon-lease")
        await until(lambda: statuses_of(stage, ADDON_AVAILABLE) == [UNKNOWN, TRUE])
        stage.scheduler.wake("addon-lease")
        stage.clock.advance(GRACE)
        stage.scheduler.wake("addon-lease")
        await until(lambda: statuses_of(stage, ADDON_AVAILABLE) == [UNKNOWN, TRUE, FALSE])


async def test_an_addon_with_a_check_of_its_own_is_left_alone(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", health_check_mode="Customized"), AddOn(AddOnName("other"), "x"))
    async with stage.running():
        await until(lambda: stage.hub.sessions and stage.hub.session.addon_reports)
        stage.scheduler.wake("addon-lease")
        await until(lambda: len(stage.hub.session.beats) > 2)
    assert statuses_of(stage, ADDON_AVAILABLE) == []


async def test_addon_gets_one_certificate_per_registration_once_its_namespace_exists(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(HUB_ACCESS, CUSTOM)),)
    stage.addon_secrets.refuse_writes = UnavailableError('namespace "logging" not found')
    async with stage.running():
        await until(lambda: statuses_of(stage, CERTIFICATE_ROTATED)[:1] == [FALSE])
        stage.addon_secrets.refuse_writes = None
        await until(lambda: statuses_of(stage, CERTIFICATE_ROTATED)[-1:] == [TRUE])
        await until(lambda: stage.addon_secrets.names == {SECRET, OTHER})
    async with stage.running():
        await until(lambda: len(stage.hub.sessions) == 2 and len(stage.hub.session.beats) > 3)
    assert len(stage.hub.issued) == 3, "neither the delay nor a restart costs another certificate"
    contents = (await stage.addon_secrets.read(SECRET)).contents
    assert parse_certificate(contents["tls.crt"]).subject == HUB_ACCESS.subject
    assert key_matches(contents["tls.crt"], contents["tls.key"])
    assert parse_kubeconfig(contents["kubeconfig"], source="secret", folder=contents).cluster.server
    assert "agent-name" not in contents
    custom = (await stage.addon_secrets.read(OTHER)).contents
    assert parse_certificate(custom["tls.crt"]).subject == CUSTOM.subject
    assert "kubeconfig" not in custom
    requested = {request.addon for request in stage.hub.requests.values() if request.addon}
    assert requested == {(LOGS, KUBE_SIGNER), (LOGS, CUSTOM.signer_name)}


async def test_addons_certificate_is_renewed_changed_and_deleted_with_its_registration(stage: Stage) -> None:
    addon = AddOn(LOGS, "logging", registrations=(HUB_ACCESS,))
    stage.hub.addons = (addon,)

    def present() -> CertificateFacts:
        return parse_certificate(stage.addon_secrets.contents(SECRET)["tls.crt"])

    async def beat() -> None:
        beats = len(stage.hub.session.beats)
        await until(lambda: len(stage.hub.session.beats) > beats + 2)

    async with stage.running():
        await until(lambda: statuses_of(stage, CERTIFICATE_ROTATED) == [TRUE])
        first = present()
        stage.clock.advance(rotate_at(first.serial, first.not_before, first.not_after) - stage.clock.now() + timedelta(1))
        stage.scheduler.wake("addon-registration")
        await until(lambda: statuses_of(stage, CERTIFICATE_ROTATED) == [TRUE, TRUE])
        assert present().serial != first.serial
        assert present().subject == first.subject
        changed = replace(HUB_ACCESS, user="system:other")
        stage.hub.set_addons([replace(addon, registrations=(changed,))])
        await until(lambda: statuses_of(stage, CERTIFICATE_ROTATED) == [TRUE, TRUE, TRUE])
        assert present().subject == changed.subject
        stage.hub.set_addons([replace(addon, deleting=True, registrations=())])
        await beat()
        assert SECRET in stage.addon_secrets.names, "one that is being deleted keeps it"
        stage.hub.addons = None
        stage.hub.session.end(HubLostError("that was it"))
        await until(lambda: is_available(stage))
        stage.scheduler.wake("addon-registration")
        await beat()
        assert SECRET in stage.addon_secrets.names, "add-ons that cannot be seen are not gone"
        stage.hub.set_addons(())
        await until(lambda: SECRET not in stage.addon_secrets.names)


def token(begin: datetime = NOW, end: datetime = NOW + HOUR, uid: str = "u", **claims: Any) -> str:
    return service_account_token(uid, begin, end, **claims)


def test_token_is_replaced_when_it_is_not_good_or_nearly_over() -> None:
    assert token_due(unverified_claims(token()), "u") == NOW + timedelta(minutes=48), "a fifth is left"
    useless = [
        *("", "one.two", "a.b.c.d", "a.***.c"),
        *(token(exp=None), token(iat=None), token(exp="soon"), token(exp=10**30)),
        *(token(uid="another"), service_account_token("u", NOW, NOW + HOUR, **NOBODY)),
        *(token(begin=NOW, end=NOW), token(begin=NOW, end=NOW - HOUR)),
    ]
    assert [text for text in useless if token_due(unverified_claims(text), "u") is not None] == []


def test_uid_of_the_account_is_read_from_the_hubs_message() -> None:
    assert uid_in("ServiceAccount c1/logs-agent (UID: 1234) is ready") == "1234"
    others = ("", "is ready", "ServiceAccount c1/logs-agent (UID: 1234", "ServiceAccount c1/logs-agent (UID: ) is ready")
    assert [uid_in(message) for message in others] == [""] * 4


def by(stage: Stage, driver: str) -> None:
    stage.options = replace(stage.options, addons=AddOnOptions(driver=driver, token_lifetime=HOUR))


async def contents(stage: Stage) -> dict[str, bytes]:
    return dict((await stage.addon_secrets.read(SECRET)).contents)


async def test_an_add_on_gets_a_kubeconfig_with_a_token_and_nothing_of_a_certificate(stage: Stage) -> None:
    by(stage, TOKEN)
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(replace(BY_TOKEN, driver=CSR), CUSTOM)),)
    async with stage.running():
        await until(lambda: statuses_of(stage, TOKEN_REFRESHED) == [TRUE] and statuses_of(stage, CERTIFICATE_ROTATED) == [TRUE])
    stored = await contents(stage)
    assert stored["token"].decode() == stage.hub.tokens[0]
    assert yaml.safe_load(stored["kubeconfig"])["users"][0]["user"] == {"tokenFile": "token"}
    assert not {"tls.crt", "tls.key"} & stored.keys()
    assert stage.hub.addons[0].registrations[0].driver == TOKEN, "noted on the hub before anything is asked for"
    assert [request.addon for request in stage.hub.requests.values() if request.addon] == [(LOGS, CUSTOM.signer_name)]


async def test_token_waits_for_its_account_and_is_refreshed_in_time_or_with_the_account(stage: Stage) -> None:
    by(stage, TOKEN)
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(BY_TOKEN,)),)
    async with stage.running():
        await until(lambda: stage.hub.sessions and stage.hub.session.reports)
        assert stage.hub.tokens == []
        stage.hub.note_driver(LOGS, TOKEN)
        await until(lambda: statuses_of(stage, TOKEN_REFRESHED) == [TRUE])
        stage.scheduler.wake("addon-registration")
        beats = len(stage.hub.session.beats)
        await until(lambda: len(stage.hub.session.beats) > beats + 2)
        assert len(stage.hub.tokens) == 1
        stage.clock.advance(timedelta(minutes=49))
        stage.scheduler.wake("addon-registration")
        await until(lambda: statuses_of(stage, TOKEN_REFRESHED) == [TRUE, TRUE])
        assert (await contents(stage))["token"].decode() == stage.hub.tokens[1]
        stage.hub.set_addons([AddOn(LOGS, "logging", registrations=(BY_TOKEN,), account_uid="second")])
        await until(lambda: len(stage.hub.tokens) == 3)


async def test_token_is_stored_as_soon_as_it_can_be_and_a_changed_kubeconfig_reaches_it_at_once(stage: Stage) -> None:
    """OCM waits with the kubeconfig until the token is refreshed."""
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(BY_TOKEN,), account_uid="u"),)
    stage.addon_secrets.refuse_writes = UnavailableError('namespace "logging" not found')
    async with stage.running():
        await until(lambda: statuses_of(stage, TOKEN_REFRESHED)[:1] == [FALSE])
        stage.addon_secrets.refuse_writes = None
        await until(lambda: statuses_of(stage, TOKEN_REFRESHED)[-1:] == [TRUE])
        secret = await stage.addon_secrets.read(SECRET)
        await stage.addon_secrets.write(SECRET, {**secret.contents, "kubeconfig": b"of another hub"}, secret.version)
        stage.scheduler.wake("addon-registration")
        await until(lambda: stage.addon_secrets.contents(SECRET)["kubeconfig"] == secret.contents["kubeconfig"])
        beats = len(stage.hub.session.beats)
        await until(lambda: len(stage.hub.session.beats) > beats + 5)
    assert len(stage.hub.tokens) == 1, "no other token is asked for"


async def test_from_certificate_to_token_and_back_there_is_always_a_credential(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(replace(BY_TOKEN, driver=CSR),)),)
    async with stage.running():
        await until(lambda: statuses_of(stage, CERTIFICATE_ROTATED) == [TRUE])
        stage.hub.note_driver(LOGS, TOKEN)
        await until(lambda: statuses_of(stage, TOKEN_REFRESHED) == [TRUE])
        assert "tls.crt" not in await contents(stage)
        stage.hub.note_driver(LOGS, CSR)
        await until(lambda: statuses_of(stage, CERTIFICATE_ROTATED) == [TRUE, TRUE])
    stored = await contents(stage)
    assert "token" not in stored
    assert b"tls.crt" in stored["kubeconfig"]
    assert stage.addon_secrets.deleted == []


class Place:
    """The namespaces of both clusters, and what lies where."""

    def __init__(self) -> None:
        self.secrets: dict[tuple[str, bool], MemorySecrets] = {}
        self.pending = MemorySecrets()
        self.certificates: AddOnCredentials = {}

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
async def at(hub: MemoryHub, place: Place, care: AddOnOptions = CARE) -> AsyncIterator[Run]:
    credential = hub.credential(NAMES.subject)
    client = hub.dial(None, ClientIdentity(credential.chain, credential.key))
    await client.ensure_cluster(AgentIdentity(AgentNames(CLUSTER, AGENT), "uid"), endpoints=(), annotations={})
    registered = AddOnContext(
        agent=AgentIdentity(NAMES, "uid"),
        kubeconfig=b"clusters: [{name: %s}]" % hub.hub_id.encode(),
        secrets=place.of,
        pending=lambda secret: Slot(place.pending, f"{secret}-{hub.hub_id[:8]}"),
        hub_id=hub.hub_id,
        options=care,
    )
    async with client.session(SessionHello("uid")) as session:
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
        await check_refusal_of(MusterError, run.look(changed))
        assert leaf(place.at("old")) == "system:logs"
        stage.hub.away = False
        await run.look(changed)
        assert (leaf(place.at("old")), place.at("old").deleted) == ("system:other", [])
        stage.hub.away = True
        await check_refusal_of(MusterError, run.look(moved))
        assert place.at("old").names == {SECRET}
        stage.hub.away = False
        await run.look(moved)
    assert (place.at("old").names, place.at("new").names) == (set(), {SECRET})


async def test_secret_that_the_agent_may_not_touch_is_a_condition_of_the_addon_until_it_may(stage: Stage) -> None:
    place, reserved = Place(), AddOn(AddOnName("bootstrap"), "x", registrations=(FOR_HUB,))
    secrets = place.at("x")
    secrets.refuse_reads = RefusedSecretError(f"{SECRET} is somebody else's")
    async with at(stage.hub, place) as run:
        addon = AddOn(LOGS, "x", registrations=(FOR_HUB,))
        for _ in range(2):
            await run.look(addon, reserved)
        reported = {name: [each.message for each in conditions] for name, conditions in run.session.addon_reports}
        assert reported[LOGS] == [f"{SECRET} is somebody else's"]
        assert len(run.session.addon_reports) == len(reported) == 2, "once each"
        assert "reserved for the agent" in reported[reserved.name][0]
        assert secrets.names == set()
        secrets.refuse_reads = None
        await run.look(addon, reserved)
    assert secrets.names == {SECRET}


async def test_failing_registration_of_an_addon_blocks_no_later_one(stage: Stage) -> None:
    addon = AddOn(LOGS, "x", registrations=(OTHER_CUSTOM, BY_TOKEN), account_uid="u")
    stage.hub.addons = (addon,)
    place, unread = Place(), Place()
    unread.pending.refuse_reads = UnavailableError("the API server is away")
    stage.hub.faults["submit_request"] = ForbiddenError("denied")
    for each in (place, unread):
        async with at(stage.hub, each) as run:
            await check_refusal_of(MusterError, run.look(addon))
        assert each.at("x").names == {SECRET}


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
    place, addon = Place(), AddOn(LOGS, "logging", registrations=(FOR_HUB, OTHER_CUSTOM))
    second = MemoryHub(stage.clock, hub_id=HubId("1f1e2d3c-0000-4000-8000-000000000002"))
    async with at(stage.hub, place) as run:
        await run.look(addon)
    before = {name: dict(place.at("logging").contents(name)) for name in (SECRET, OTHER)}
    async with at(second, place) as run:
        second.away = True
        await check_refusal_of(MusterError, run.look(addon))
        assert {name: dict(place.at("logging").contents(name)) for name in (SECRET, OTHER)} == before
        second.away = False
        for _ in range(2):
            await run.look(addon)
            assert len(second.issued) == 2
    after = place.at("logging")
    assert second.hub_id.encode() in after.contents(SECRET)["kubeconfig"]
    serials = {parse_certificate(after.contents(name)["tls.crt"]).serial for name in (SECRET, OTHER)}
    assert (serials, after.deleted) == (set(second.issued), [])
    assert not place.pending.names


async def test_one_registration_more_or_less_and_a_secret_without_its_hub_replace_no_other_credential(stage: Stage) -> None:
    place, both = Place(), AddOn(LOGS, "logging", registrations=(FOR_HUB, OTHER_CUSTOM))
    async with at(stage.hub, place) as run:
        await run.look(both)
        before = place.at("logging").contents(SECRET)
        await run.look(replace(both, registrations=(FOR_HUB,)))
        assert place.at("logging").names == {SECRET}
        await run.look(both)
    kept = place.at("logging")
    assert (kept.contents(SECRET), kept.names) == (before, {SECRET, OTHER})
    issued, stored = len(stage.hub.issued), await kept.read(OTHER)
    without = {key: value for key, value in stored.contents.items() if key != "hub-id"}
    await kept.write(OTHER, without, stored.version)  # as an earlier release wrote it
    place.certificates = {}
    async with at(stage.hub, place) as run:
        await run.look(both)
    assert len(stage.hub.issued) == issued


async def test_a_hub_that_does_not_keep_the_driver_is_reported_once_and_served_all_the_same(stage: Stage) -> None:
    place, addon = Place(), AddOn(LOGS, "logging", registrations=(replace(FOR_HUB, driver="token"),), account_uid="u")
    async with at(stage.hub, place, AddOnOptions(driver=CSR)) as run:
        await run.look(addon)
        assert run.session.addon_reports == [(LOGS, ())]
        for _ in range(2):
            await run.look(addon)
        assert [entry.type for _, reported in run.session.addon_reports for entry in reported] == [CERTIFICATE_ROTATED]
    assert leaf(place.at("logging")) == "system:logs"


async def test_leases_are_read_where_the_add_on_is_hosted_and_their_grace_is_a_setting(stage: Stage) -> None:
    management, near = MemoryCluster(), AddOnName("near")
    management.leases["x", LOGS] = stage.clock.now()
    async with at(stage.hub, Place()) as run:
        grace = AddOnOptions().lease_grace / 10
        controller = AddOnLeaseController(run.session, stage.cluster, management, stage.clock, grace=grace)
        controller.set_addons([AddOn(LOGS, "x", hosting_cluster_name="big"), AddOn(near, "x")])
        for name in (LOGS, near):
            await controller.reconcile(name)
        stage.clock.advance(grace * 2)
        await controller.reconcile(LOGS)
        reported = [(name, entry.reason) for name, entries in run.session.addon_reports for entry in entries]
    assert reported == [
        (LOGS, "ManagedClusterAddOnLeaseUpdated"),
        (near, "ManagedClusterAddOnLeaseNotFound"),
        (LOGS, "ManagedClusterAddOnLeaseUpdateStopped"),
    ]
