"""Add-ons over the session: what their leases tell, and the certificates that they are given."""

import asyncio
from dataclasses import replace
from datetime import timedelta

from machinery.conditions import ADDON_AVAILABLE, CERTIFICATE_ROTATED, FALSE, TRUE, UNKNOWN
from machinery.errors import UnavailableError
from machinery.identity import AddOnName
from machinery.kubeconfig import parse_kubeconfig
from machinery.pki import key_matches, parse_certificate
from spoke.domain.addon import GRACE, KUBE_SIGNER, AddOn, AddOnRegistration
from spoke.domain.rotation import rotate_at
from spoke.ports import HubLostError
from tests.fakes.stage import Stage, until

LOGS = AddOnName("logs")
HUB_ACCESS = AddOnRegistration(KUBE_SIGNER, "system:logs", ("logs",))
CUSTOM = AddOnRegistration("example.com/signer", "user", (), ("unit",))
SECRET = "logs-hub-kubeconfig"  # noqa: S105 - the name of a secret


def told(stage: Stage, kind: str) -> list[str]:
    """The statuses of a condition of the add-on, as the hub was told over all sessions."""
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
        await until(lambda: told(stage, ADDON_AVAILABLE) == [UNKNOWN])
        stage.cluster.leases["logging", "logs"] = stage.clock.now()
        stage.timetable.wake("addon-lease")
        await until(lambda: told(stage, ADDON_AVAILABLE) == [UNKNOWN, TRUE])
        stage.timetable.wake("addon-lease")
        stage.clock.advance(GRACE)
        stage.timetable.wake("addon-lease")
        await until(lambda: told(stage, ADDON_AVAILABLE) == [UNKNOWN, TRUE, FALSE])


async def test_an_addon_with_a_check_of_its_own_is_left_alone(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", health_check_mode="Customized"), AddOn(AddOnName("other"), "x"))
    async with stage.running():
        await until(lambda: stage.hub.sessions and stage.hub.session.addon_reports)
        stage.timetable.wake("addon-lease")
        await until(lambda: len(stage.hub.session.beats) > 2)
    assert told(stage, ADDON_AVAILABLE) == []


async def test_an_addon_gets_a_kubeconfig_with_a_certificate_of_its_subject(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(HUB_ACCESS, CUSTOM)),)
    async with stage.running():
        await until(lambda: told(stage, CERTIFICATE_ROTATED) == [TRUE, TRUE])
    contents = (await stage.addon_secrets.read(SECRET)).contents
    leaf = parse_certificate(contents["tls.crt"])
    assert leaf.subject == HUB_ACCESS.subject
    assert key_matches(contents["tls.crt"], contents["tls.key"])
    assert parse_kubeconfig(contents["kubeconfig"], source="secret", folder=contents).cluster.server
    assert "agent-name" not in contents
    custom = (await stage.addon_secrets.read("logs-example.com-signer-client-cert")).contents
    assert parse_certificate(custom["tls.crt"]).subject == CUSTOM.subject
    assert "kubeconfig" not in custom
    assert [request.addon for request in stage.hub.requests.values() if request.addon] == [
        (LOGS, KUBE_SIGNER),
        (LOGS, CUSTOM.signer_name),
    ]


async def test_a_restart_asks_for_no_second_certificate(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(HUB_ACCESS,)),)
    async with stage.running():
        await until(lambda: told(stage, CERTIFICATE_ROTATED))
    async with stage.running():
        await until(lambda: len(stage.hub.sessions) == 2 and len(stage.hub.session.beats) > 3)
    assert len(stage.hub.issued) == 2


async def test_an_install_namespace_that_appears_later_costs_no_second_certificate(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(HUB_ACCESS,)),)
    stage.addon_secrets.refuse_writes = UnavailableError('namespace "logging" not found')
    async with stage.running():
        await until(lambda: told(stage, CERTIFICATE_ROTATED)[:1] == [FALSE])
        stage.addon_secrets.refuse_writes = None
        await until(lambda: told(stage, CERTIFICATE_ROTATED)[-1:] == [TRUE])
    assert len(stage.hub.issued) == 2


async def test_a_changed_registration_gets_a_new_certificate(stage: Stage) -> None:
    addon = AddOn(LOGS, "logging", registrations=(HUB_ACCESS,))
    stage.hub.addons = (addon,)
    async with stage.running():
        await until(lambda: told(stage, CERTIFICATE_ROTATED) == [TRUE])
        changed = replace(HUB_ACCESS, user="system:other")
        stage.hub.set_addons([replace(addon, registrations=(changed,))])
        await until(lambda: told(stage, CERTIFICATE_ROTATED) == [TRUE, TRUE])
    contents = (await stage.addon_secrets.read(SECRET)).contents
    assert parse_certificate(contents["tls.crt"]).subject == changed.subject


async def test_an_addon_that_is_gone_loses_its_secret_and_one_that_is_being_deleted_keeps_it(stage: Stage) -> None:
    addon = AddOn(LOGS, "logging", registrations=(HUB_ACCESS,))
    stage.hub.addons = (addon,)
    async with stage.running():
        await until(lambda: told(stage, CERTIFICATE_ROTATED) == [TRUE])
        stage.hub.set_addons([replace(addon, deleting=True, registrations=())])
        beats = len(stage.hub.session.beats)
        await until(lambda: len(stage.hub.session.beats) > beats + 2)
        assert (await stage.addon_secrets.read(SECRET)).version is not None
        stage.hub.set_addons([])
        async with asyncio.timeout(5):
            async for snapshot in stage.addon_secrets.changes(SECRET):
                if snapshot.version is None:
                    break


async def test_addons_that_cannot_be_seen_are_not_taken_for_gone(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(HUB_ACCESS,)),)
    async with stage.running():
        await until(lambda: told(stage, CERTIFICATE_ROTATED) == [TRUE])
        stage.hub.addons = None
        stage.hub.session.end(HubLostError("that was it"))
        await until(lambda: len(stage.hub.sessions) == 2 and stage.hub.session.beats)
        stage.timetable.wake("addon-registration")
        beats = len(stage.hub.session.beats)
        await until(lambda: len(stage.hub.session.beats) > beats + 2)
        assert (await stage.addon_secrets.read(SECRET)).version is not None
        stage.hub.set_addons(())
        await until(lambda: SECRET not in stage.addon_secrets.names)


async def test_an_addons_certificate_is_renewed_like_the_agents_own(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(HUB_ACCESS,)),)
    async with stage.running():
        await until(lambda: told(stage, CERTIFICATE_ROTATED) == [TRUE])
        first = parse_certificate((await stage.addon_secrets.read(SECRET)).contents["tls.crt"])
        stage.clock.advance(rotate_at(first.serial, first.not_before, first.not_after) - stage.clock.now() + timedelta(1))
        stage.timetable.wake("addon-registration")
        await until(lambda: len(told(stage, CERTIFICATE_ROTATED)) > 1)
    second = parse_certificate((await stage.addon_secrets.read(SECRET)).contents["tls.crt"])
    assert second.serial != first.serial
    assert second.subject == first.subject
