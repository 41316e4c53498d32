"""Add-ons that identify themselves at the hub by a token of a ServiceAccount."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from machinery.conditions import CERTIFICATE_ROTATED, FALSE, TRUE
from machinery.errors import UnavailableError
from machinery.identity import AddOnName
from machinery.pki import unverified_claims
from spoke.addoncredentials import AddOnCare
from spoke.domain.addon import CSR, KUBE_SIGNER, TOKEN, AddOn, AddOnRegistration, uid_in
from spoke.domain.addontoken import REFRESHED, due, due_of, flaw
from tests.fakes.hub import service_account_token
from tests.fakes.stage import Stage, until

LOGS = AddOnName("logs")
SECRET = "logs-hub-kubeconfig"  # noqa: S105 - the name of a secret
NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
BY_TOKEN = AddOnRegistration(KUBE_SIGNER, "system:logs", ("logs",), driver=TOKEN)
NOBODY: dict[str, Any] = {"kubernetes.io": None}
CUSTOM = AddOnRegistration("example.com/signer", "user")


def token(begin: datetime = NOW, end: datetime = NOW + HOUR, uid: str = "u", **claims: Any) -> str:
    return service_account_token(uid, begin, end, **claims)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (token(), ""),
        (token(end=NOW + timedelta(minutes=12), begin=NOW - timedelta(minutes=48)), "nearly over"),
        (token(end=NOW + timedelta(minutes=13), begin=NOW - timedelta(minutes=47)), ""),
        ("", "no readable token"),
        ("one.two", "no readable token"),
        ("a.b.c.d", "no readable token"),
        ("a.***.c", "no readable token"),
        (token(exp=None), "from when to when"),
        (token(iat=None), "from when to when"),
        (token(exp="soon"), "from when to when"),
        (token(exp=10**30), "from when to when"),
        (token(uid="another"), "another ServiceAccount"),
        (service_account_token("u", NOW, NOW + HOUR, **NOBODY), "another ServiceAccount"),
        (token(begin=NOW, end=NOW), "never good"),
        (token(begin=NOW, end=NOW - HOUR), "never good"),
        (token(begin=NOW - 2 * HOUR, end=NOW - HOUR), "expired"),
    ],
)
def test_a_token_is_replaced_when_it_is_not_good_or_nearly_over(text: str, said: str) -> None:
    found = flaw(unverified_claims(text), "u", NOW)
    assert (said in found) if said else found == ""


def test_a_token_is_due_when_a_fifth_of_its_life_is_left() -> None:
    assert due(NOW, NOW + HOUR) == NOW + timedelta(minutes=48) == due_of(unverified_claims(token()))
    assert due_of(None) is None


@pytest.mark.parametrize(
    ("message", "uid"),
    [
        ("ServiceAccount c1/logs-agent (UID: 1234) is ready", "1234"),
        ("", ""),
        ("is ready", ""),
        ("ServiceAccount c1/logs-agent (UID: 1234", ""),
        ("ServiceAccount c1/logs-agent (UID: ) is ready", ""),
    ],
)
def test_the_uid_of_the_account_is_read_from_the_hubs_message(message: str, uid: str) -> None:
    assert uid_in(message) == uid


def by(stage: Stage, driver: str) -> None:
    stage.options = replace(stage.options, addons=AddOnCare(driver=driver, token_lifetime=HOUR))


def told(stage: Stage, kind: str) -> list[str]:
    reports = [report for session in stage.hub.sessions for report in session.addon_reports]
    return [entry.status for _, conditions in reports for entry in conditions if entry.type == kind]


async def contents(stage: Stage) -> dict[str, bytes]:
    return dict((await stage.addon_secrets.read(SECRET)).contents)


async def test_an_add_on_gets_a_kubeconfig_with_a_token_and_nothing_of_a_certificate(stage: Stage) -> None:
    by(stage, TOKEN)
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(BY_TOKEN, CUSTOM)),)
    stage.hub.note_driver(LOGS, TOKEN)
    async with stage.running():
        await until(lambda: told(stage, REFRESHED) == [TRUE] and told(stage, CERTIFICATE_ROTATED) == [TRUE])
    stored = await contents(stage)
    assert stored["token"].decode() == stage.hub.tokens[0]
    assert yaml.safe_load(stored["kubeconfig"])["users"][0]["user"] == {"tokenFile": "token"}
    assert not {"tls.crt", "tls.key"} & stored.keys()


async def test_the_driver_is_noted_on_the_hub_before_anything_is_asked_for(stage: Stage) -> None:
    by(stage, TOKEN)
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(replace(BY_TOKEN, driver=CSR),)),)
    async with stage.running():
        await until(lambda: told(stage, REFRESHED) == [TRUE])
    assert [entry.driver for addon in stage.hub.addons for entry in addon.registrations] == [TOKEN]
    assert not [request for request in stage.hub.requests.values() if request.addon]


async def test_a_token_waits_for_its_account_and_is_asked_for_as_soon_as_that_is_there(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(BY_TOKEN,)),)
    async with stage.running():
        await until(lambda: stage.hub.sessions and stage.hub.session.reports)
        assert stage.hub.tokens == []
        stage.hub.note_driver(LOGS, TOKEN)
        await until(lambda: told(stage, REFRESHED) == [TRUE])


async def test_a_token_is_refreshed_in_time_and_not_before(stage: Stage) -> None:
    by(stage, TOKEN)
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(BY_TOKEN,), account_uid="u"),)
    async with stage.running():
        await until(lambda: len(stage.hub.tokens) == 1)
        stage.timetable.wake("addon-registration")
        beats = len(stage.hub.session.beats)
        await until(lambda: len(stage.hub.session.beats) > beats + 2)
        assert len(stage.hub.tokens) == 1
        stage.clock.advance(timedelta(minutes=49))
        stage.timetable.wake("addon-registration")
        await until(lambda: told(stage, REFRESHED) == [TRUE, TRUE])
    assert (await contents(stage))["token"].decode() == stage.hub.tokens[1]


async def test_a_token_of_an_account_that_was_made_anew_is_replaced(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(BY_TOKEN,), account_uid="first"),)
    async with stage.running():
        await until(lambda: len(stage.hub.tokens) == 1)
        stage.hub.set_addons([AddOn(LOGS, "logging", registrations=(BY_TOKEN,), account_uid="second")])
        await until(lambda: len(stage.hub.tokens) == 2)


async def test_a_changed_kubeconfig_reaches_a_tokens_secret_at_once(stage: Stage) -> None:
    """OCM waits with it until the token is refreshed."""
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(BY_TOKEN,), account_uid="u"),)
    async with stage.running():
        await until(lambda: told(stage, REFRESHED) == [TRUE])
        secret = await stage.addon_secrets.read(SECRET)
        await stage.addon_secrets.write(SECRET, {**secret.contents, "kubeconfig": b"of another hub"}, secret.version)
        stage.timetable.wake("addon-registration")
        beats = len(stage.hub.session.beats)
        await until(lambda: len(stage.hub.session.beats) > beats + 5)
    assert (await contents(stage))["kubeconfig"] == secret.contents["kubeconfig"]
    assert len(stage.hub.tokens) == 1


async def test_a_token_that_could_not_be_stored_is_not_asked_for_again(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(BY_TOKEN,), account_uid="u"),)
    stage.addon_secrets.refuse_writes = UnavailableError('namespace "logging" not found')
    async with stage.running():
        await until(lambda: told(stage, REFRESHED)[:1] == [FALSE])
        stage.addon_secrets.refuse_writes = None
        await until(lambda: told(stage, REFRESHED)[-1:] == [TRUE])
    assert len(stage.hub.tokens) == 1


async def test_from_certificate_to_token_and_back_there_is_always_a_credential(stage: Stage) -> None:
    by_certificate = AddOn(LOGS, "logging", registrations=(replace(BY_TOKEN, driver=CSR),))
    stage.hub.addons = (by_certificate,)
    async with stage.running():
        await until(lambda: told(stage, CERTIFICATE_ROTATED) == [TRUE])
        stage.hub.note_driver(LOGS, TOKEN)
        await until(lambda: told(stage, REFRESHED) == [TRUE])
        assert "tls.crt" not in await contents(stage)
        stage.hub.note_driver(LOGS, CSR)
        await until(lambda: told(stage, CERTIFICATE_ROTATED) == [TRUE, TRUE])
    stored = await contents(stage)
    assert "token" not in stored
    assert b"tls.crt" in stored["kubeconfig"]
    assert stage.addon_secrets.deleted == []
