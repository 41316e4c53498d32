"""What a hub says of its CAs: checked, tried, kept in every place before it is answered, whatever dies in between."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from machinery.client.kubeconfig import ClusterEntry, HubEndpoint, parse_kubeconfig, with_authority, write_hub_kubeconfig
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import AddOnName, CertificateSubject
from machinery.pki import CertificateAuthority, Plan, create_authority, generate_key, public_key_of, random_serial
from spoke.credentials.kubeconfigs import connection_of, stored_connection, view_stored
from spoke.credentials.trust_bundle import MOST, TRIALS, checked, fingerprints, retrusted, tried
from spoke.domain.addon import KUBE_SIGNER, AddOn, AddOnRegistration
from spoke.domain.credential import KUBECONFIG, ORIGIN, TRUST
from spoke.ports.hub import ClientIdentity, HubAddress, HubInfo, HubLostError
from tests.checks import check_refusals, present
from tests.fakes.credentials import DyingSecrets, KilledError, MemoryDirectory
from tests.fakes.hub import MemoryHubClient
from tests.fakes.stage import OWNER, SLOT, Stage, until

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOGS = AddOnName("logs")
HUB_ACCESS = AddOnRegistration(KUBE_SIGNER, "system:logs", ("logs",))
SECRET = "logs-hub-kubeconfig"  # noqa: S105 - the name of a secret
DAY = timedelta(days=1)


def authority(name: str, begins: datetime = NOW - DAY, ends: datetime = NOW + 3650 * DAY) -> CertificateAuthority:
    return create_authority(CertificateSubject(name), generate_key(), random_serial(), begins, ends)


NEW = authority("new").certificate


def leaf() -> bytes:
    key = public_key_of(generate_key())
    return authority("any").sign(Plan(CertificateSubject("leaf"), key, random_serial(), NOW - DAY, NOW + DAY))


def test_invalid_bundle_of_authorities_is_refused() -> None:
    rows = [(bundle, "no certificate that can be read") for bundle in (b"", b"what is this?")]
    rows += [(bundle, '"leaf", which is no certificate authority') for bundle in (leaf(), NEW + leaf())]
    rows += [(authority("old", NOW - 2 * DAY, NOW - DAY).certificate, "has ended, or has not begun")]
    check_refusals(InvalidError, lambda bundle: checked(bundle, NOW), [*rows, (NEW * (MOST + 1), f"at most {MOST}")])


@pytest.mark.parametrize(
    ("answers", "error"),
    [([True], None), ([False, True, True], None), ([False, False], UnavailableError), ([False, True] * TRIALS, InvalidError)],
)
async def test_bundle_is_refused_only_when_the_hub_answers_by_the_trusted_authorities_and_never_by_it(
    stage: Stage, answers: list[bool], error: type[Exception] | None
) -> None:
    """A replica that dies between two connections says nothing of a bundle. `answers`: whether each connection succeeds."""
    connection = connection_of(parse_kubeconfig(stage.file.read_bytes(), source="file", folder={}))
    left = iter(answers)

    class Client(MemoryHubClient):
        async def info(self) -> HubInfo:
            if not next(left):
                raise UnavailableError("away")
            return await super().info()

    def dial(address: HubAddress, identity: ClientIdentity) -> MemoryHubClient:
        del address
        return Client(stage.hub, identity)

    with pytest.raises(error) if error else nullcontext():
        await tried(connection, NEW, dial)
    assert next(left, None) is None, "every connection was made"


def entry(*, both: bool) -> ClusterEntry:
    own = None if both else b"grpc ca"
    endpoint = HubEndpoint("127.0.0.1:8443", "id", own)  # type: ignore[arg-type]
    return ClusterEntry("hub", "https://127.0.0.1:6443", b"https ca", endpoint, "http://proxy", "name")


def test_only_the_authority_of_the_grpc_door_changes_in_a_kubeconfig() -> None:
    """Where the HTTPS door has a CA of its own, by a certificate from elsewhere, that one stays."""
    for both in (True, False):
        wanted = entry(both=both)
        assert wanted.endpoint is not None
        endpoint = wanted.endpoint if both else replace(wanted.endpoint, certificate_authority=b"new ca")
        changed = replace(wanted, certificate_authority=b"new ca" if both else b"https ca", endpoint=endpoint)
        assert with_authority(write_hub_kubeconfig(wanted), b"new ca") == write_hub_kubeconfig(changed)


def test_what_the_bootstrap_kubeconfig_named_is_remembered_and_an_unchanged_one_is_no_other_hub() -> None:
    old, other = authority("old").certificate, authority("other").certificate
    made = replace(entry(both=True), certificate_authority=old)
    first = {KUBECONFIG: write_hub_kubeconfig(made), TRUST: other}
    bootstrap = present(view_stored({KUBECONFIG: first[KUBECONFIG]}).hub)
    second = retrusted(first, old + NEW)
    third = retrusted(second, NEW)
    for contents in (second, third):
        assert contents[ORIGIN] == old
        assert TRUST not in contents
        seen = present(view_stored(contents).hub)
        assert seen.difference(bootstrap) == ""
        assert seen.difference(replace(bootstrap, ca=NEW)) == "", "a new bootstrap kubeconfig that names what is known anyway"
        assert seen.difference(replace(bootstrap, ca=other)) == "certificate authority"
        assert seen.difference(replace(bootstrap, ca=b"nothing")) == "certificate authority"
    assert retrusted(third, NEW) == third
    assert ORIGIN not in retrusted(third, old), "back where it was"


def trusted(contents: Mapping[str, bytes]) -> tuple[str, ...]:
    return fingerprints(stored_connection(contents).address.ca)


async def until_installed(stage: Stage, bundle: bytes) -> None:
    await until(lambda: next(iter(stage.hub.trusted.values()), ()) == fingerprints(bundle))


async def all_say(stage: Stage, bundle: bytes) -> None:
    """Every place knows the hub by this bundle."""
    for name in (OWNER, SLOT):
        assert trusted((await stage.secrets.read(name)).contents) == fingerprints(bundle), name
    assert trusted(stage.directory.read()) == fingerprints(bundle)
    if stage.hub.addons:
        contents = stage.addon_secrets.contents(SECRET)
        read = parse_kubeconfig(contents["kubeconfig"], source="secret", folder=contents)
        assert fingerprints(read.cluster.certificate_authority) == fingerprints(bundle)


async def all_come_to_say(stage: Stage, bundle: bytes) -> None:
    """The same, soon: an agent that is started anew says what its secret says, and sees to the other places then."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await all_say(stage, bundle)
            except AssertionError:
                await asyncio.sleep(0.01)


async def test_a_bundle_is_kept_in_every_place_before_it_is_answered_and_no_certificate_is_renewed_for_it(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(HUB_ACCESS,)),)
    own = stage.hub.authority.certificate
    async with stage.running():
        await until(lambda: stage.addon_secrets.contents(SECRET))
        await until(lambda: stage.hub.session.beats)
        before, sessions = list(stage.hub.issued), len(stage.hub.sessions)
        for bundle in (own + NEW, NEW):
            stage.hub.vouchers = (own, NEW)
            stage.hub.push_trust(bundle)
            await until_installed(stage, bundle)
            await all_say(stage, bundle)
        assert stage.hub.issued == before
        assert len(stage.hub.sessions) == sessions, "the session goes on"
        stage.hub.vouchers = (NEW,)
        stage.hub.session.drain()
        await until(lambda: len(stage.hub.sessions) > sessions)
        stage.hub.session.end(HubLostError("a cut"))
        await until(lambda: len(stage.hub.sessions) > sessions + 1)
        assert set(stage.hub.greeted[-2:]) == {fingerprints(NEW)}
    async with stage.running():
        await until(lambda: len(stage.hub.open_sessions) == 1)
        await until(lambda: stage.hub.session.beats)
    assert stage.hub.issued == before, "it is known after a restart too, by an unchanged bootstrap kubeconfig"


async def test_a_bundle_by_which_the_hub_cannot_be_reached_is_refused_told_and_changes_nothing(stage: Stage) -> None:
    own = stage.hub.authority.certificate
    async with stage.at_work():
        before = (await stage.secrets.read(OWNER)).contents
        for bundle, says in ((NEW, "could not be reached"), (leaf(), "no certificate authority"), (b"", "no certificate")):
            stage.hub.push_trust(bundle)
            await until(lambda says=says: any(says in news.message for news in stage.hub.session.news))  # type: ignore[misc]
        assert {news.type for news in stage.hub.session.news if news.reason == "TrustBundleRefused"} == {"Warning"}
        assert (await stage.secrets.read(OWNER)).contents == before
        assert fingerprints(own) in stage.hub.trusted.values()
        stage.hub.push_trust(own + NEW)
        await until_installed(stage, own + NEW)


async def test_bundle_waits_for_a_reachable_hub_and_a_stored_copy_and_survives_a_renewal(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(HUB_ACCESS,)),)
    bundle = stage.hub.authority.certificate + NEW
    async with stage.at_work():
        await until(lambda: stage.addon_secrets.contents(SECRET))
        stage.hub.vouchers = ()
        stage.hub.push_trust(bundle)
        await until(lambda: stage.hub.calls.count("info") > 3)
        stage.addon_secrets.refuse_writes = UnavailableError("the cluster is away")
        stage.hub.vouchers = (NEW,)
        tried = stage.hub.calls.count("info")
        await until(lambda: stage.hub.calls.count("info") > tried + 2)
        assert fingerprints(bundle) not in stage.hub.trusted.values()
        stage.addon_secrets.refuse_writes = None
        await until_installed(stage, bundle)
        await all_say(stage, bundle)
        assert not [news for news in stage.hub.session.news if news.reason == "TrustBundleRefused"]
        issued, stage.hub.vouchers = len(stage.hub.issued), (stage.hub.authority.certificate, NEW)
        stage.hub.ask_to_renew(timedelta())
        await until(lambda: len(stage.hub.issued) > issued)
        await until(lambda: len(stage.hub.sessions) == 2 and stage.hub.session.beats)
        assert stage.hub.greeted[-1] == fingerprints(bundle), "nothing had to be pushed again"
        await all_say(stage, bundle)


async def test_another_bootstrap_kubeconfig_ends_what_was_known_of_the_hub(stage: Stage) -> None:
    """After a compromise: neither what was pushed nor the CA of before is trusted any more."""
    async with stage.at_work():
        bundle = stage.hub.authority.certificate + NEW
        stage.hub.push_trust(bundle)
        await until_installed(stage, bundle)
        fresh = authority("fresh")
        stage.hub.authority, stage.hub.bundle, stage.hub.vouchers = fresh, fresh.certificate, (fresh.certificate,)
        stage.replace_bootstrap(stage.hub.bootstrap_kubeconfig())
        await until(lambda: len(stage.hub.issued) == 2)
        await until(lambda: stage.hub.open_sessions and stage.hub.session.beats)
        await all_say(stage, fresh.certificate)
        assert ORIGIN not in (await stage.secrets.read(OWNER)).contents


@dataclass
class DyingDirectory(MemoryDirectory):
    """Ends the process at the next set that it is given, before or after it has taken it."""

    fatal: bool = False
    before: bool = True

    def replace(self, contents: Mapping[str, bytes]) -> None:
        fatal, self.fatal = self.fatal, False
        if not (fatal and self.before):
            super().replace(contents)
        if fatal:
            raise KilledError


async def die_around_a_write(stage: Stage, place: str, *, before: bool, retiring: bool) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(HUB_ACCESS,)),)
    stage.directory = directory = DyingDirectory(before=before)
    stage.secrets = dying = DyingSecrets()
    of_addons = DyingSecrets(inner=stage.addon_secrets)
    world, own = stage.world, stage.hub.authority.certificate
    stage.world = lambda: replace(world(), addon_secrets=lambda _: of_addons)  # type: ignore[method-assign]
    stage.hub.vouchers = (own, NEW)
    bundles = [own + NEW, NEW] if retiring else [own + NEW]
    async with stage.at_work():
        await until(lambda: stage.addon_secrets.contents(SECRET))
        for bundle in bundles[:-1]:
            stage.hub.push_trust(bundle)
            await until_installed(stage, bundle)
    issued, sessions = list(stage.hub.issued), len(stage.hub.sessions)
    task = asyncio.create_task(stage.agent().run())
    await until(lambda: len(stage.hub.sessions) > sessions and stage.hub.session.beats)
    if place == "directory":
        directory.fatal = True
    else:
        (of_addons if place == "add-on" else dying).live(2 if place == "owner" else 1, before=before)
    stage.hub.push_trust(bundles[-1])
    await asyncio.wait([task], timeout=10)
    raised = task.exception()
    assert isinstance(raised, KilledError) or (isinstance(raised, BaseExceptionGroup) and raised.subgroup(KilledError))
    for secrets in (dying, of_addons):
        secrets.live()
    async with stage.running():
        await until_installed(stage, bundles[-1])
        await all_come_to_say(stage, bundles[-1])
        await until(lambda: stage.hub.session.beats)
    assert stage.hub.issued == issued


async def test_agent_that_dies_around_any_write_of_a_bundle_ends_with_all_of_it(new_stage: Callable[[], Stage]) -> None:
    for place, before, retiring in product(("slot", "owner", "add-on", "directory"), (True, False), (False, True)):
        await die_around_a_write(new_stage(), place, before=before, retiring=retiring)


async def test_a_renewal_that_is_asked_for_replaces_the_certificates_of_agent_and_add_ons_once(stage: Stage) -> None:
    stage.hub.addons = (AddOn(LOGS, "logging", registrations=(HUB_ACCESS,)),)
    async with stage.at_work():
        await until(lambda: stage.addon_secrets.contents(SECRET))
        old, old_addon = (await stage.secrets.read(OWNER)).contents, stage.addon_secrets.contents(SECRET)
        stage.clock.advance(timedelta(seconds=2))
        stage.hub.ask_to_renew(timedelta())
        await until(lambda: len(stage.hub.issued) == 4)
        await until(lambda: len(stage.hub.open_sessions) == 1 and len(stage.hub.sessions) == 2 and stage.hub.session.beats)
        new = (await stage.secrets.read(OWNER)).contents
        assert all(new[key] != old[key] for key in ("tls.crt", "tls.key", "recovery.crt"))
        await until(lambda: stage.addon_secrets.contents(SECRET)["tls.key"] != old_addon["tls.key"])
        stage.clock.advance(timedelta(minutes=2))
        stage.timetable.wake("addon-registration")
        stage.timetable.wake("certificate-rotation")
        await until(lambda: len(stage.hub.session.beats) > 3)
        assert len(stage.hub.issued) == 4, "level-triggered, and once"
