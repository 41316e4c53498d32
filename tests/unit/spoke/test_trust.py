"""The CAs that an agent trusts, and one credential in two secrets of any writer."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import product

import pytest
import yaml

from machinery import pki
from machinery.client.kubeconfig import ClusterEntry, HubEndpoint, parse_kubeconfig, write_hub_kubeconfig
from machinery.errors import ConflictError, ForbiddenError, InvalidError, NotLeaderError, UnavailableError
from machinery.identity import AddOnName, CertificateSubject, HubId
from machinery.meta.conditions import CERTIFICATE_ROTATED, TRUE
from machinery.runtime.clock import ManualClock
from spoke.agent.unregistration import LeftMark
from spoke.credentials.kubeconfigs import connection_of, recovery_obstacle, stored_connection, view_stored, with_authority
from spoke.credentials.owner import OwnerConflictError, OwnerRecord, owner_of
from spoke.credentials.slot import ATTEMPTS, Contents, OwnedSlot, RestoringSecrets, Slot
from spoke.credentials.trust_bundle import MAX_CERTIFICATES, TRIALS, checked, fingerprints, tried, with_trust_bundle
from spoke.domain.addon import KUBE_SIGNER, AddOn, AddOnRegistration
from spoke.domain.credential import HUB_ID, KUBECONFIG, LEFT, ORIGIN
from spoke.domain.names import AgentIdentity, choose_names
from spoke.domain.schedule import rotate_at
from spoke.ports.cluster import SecretSnapshot
from spoke.ports.hub import ClientIdentity, CSRState, HubAddress, HubInfo, HubLostError
from spoke.registration.csr_flow import CSRFlow, WantedCertificate
from tests.checks import check_refusal_of, check_refusals, present
from tests.fakes.credentials import DyingSecrets, KilledError, MemoryDirectory, MemorySecrets
from tests.fakes.hub import HUB_ID as HUB, MemoryHub, MemoryHubClient
from tests.fakes.stage import OWNER, SLOT, Stage, nothing_pends, until

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOGS = AddOnName("logs")
HUB_ACCESS = AddOnRegistration(KUBE_SIGNER, "system:logs", ("logs",))
SECRET = "logs-hub-kubeconfig"  # noqa: S105 - the name of a secret
DAY = timedelta(days=1)
OTHER = HubId("aaaaaaaa-0000-4000-8000-000000000002")
A, B = HubId("aaaaaaaa-0000"), HubId("bbbbbbbb-0000")
FIRST, SECOND = {"tls.crt": b"first"}, {"tls.crt": b"second"}
NAMES = choose_names(options=("berlin", "agent"), stored=("", ""), fresh=("", ""))


def authority(name: str, begins: datetime = NOW - DAY, ends: datetime = NOW + 3650 * DAY) -> pki.CertificateAuthority:
    return pki.create_authority(CertificateSubject(name), pki.generate_key(), pki.random_serial(), begins, ends)


NEW = authority("new").certificate


def leaf() -> bytes:
    key = pki.public_key_of(pki.generate_key())
    return authority("any").sign(pki.Plan(CertificateSubject("leaf"), key, pki.random_serial(), NOW - DAY, NOW + DAY))


def test_invalid_bundle_of_authorities_is_refused() -> None:
    rows = [(bundle, "no valid certificate") for bundle in (b"", b"what is this?")]
    rows += [(bundle, '"leaf", which is not a CA') for bundle in (leaf(), NEW + leaf())]
    rows += [(authority("old", NOW - 2 * DAY, NOW - DAY).certificate, "has ended, or has not begun")]
    check_refusals(
        InvalidError,
        lambda bundle: checked(bundle, NOW),
        [*rows, (NEW * (MAX_CERTIFICATES + 1), f"the limit of {MAX_CERTIFICATES}")],
    )


@pytest.mark.parametrize(
    ("answers", "error"),
    [([True], None), ([False, True, True], None), ([False, False], UnavailableError), ([False, True] * TRIALS, InvalidError)],
)
async def test_bundle_is_refused_only_by_a_trusted_answer(
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
    endpoint = HubEndpoint("127.0.0.1:8443", "id", None if both else b"grpc ca")  # type: ignore[arg-type]
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
    first = {KUBECONFIG: write_hub_kubeconfig(replace(entry(both=True), certificate_authority=old))}
    bootstrap = present(view_stored({KUBECONFIG: first[KUBECONFIG]}).hub)
    second = with_trust_bundle(first, old + NEW)
    third = with_trust_bundle(second, NEW)
    for contents in (second, third):
        assert contents[ORIGIN] == old
        seen = present(view_stored(contents).hub)
        assert seen.difference(bootstrap) == ""
        assert seen.difference(replace(bootstrap, ca=NEW)) == "", "a new bootstrap kubeconfig that names what is known anyway"
        assert seen.difference(replace(bootstrap, ca=other)) == "certificate authority"
        assert seen.difference(replace(bootstrap, ca=b"nothing")) == "certificate authority"
    assert with_trust_bundle(third, NEW) == third
    assert ORIGIN not in with_trust_bundle(third, old), "back where it was"


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


async def test_a_bundle_by_which_the_hub_cannot_be_reached_is_refused_reported_and_changes_nothing(stage: Stage) -> None:
    own = stage.hub.authority.certificate
    async with stage.at_work():
        before = (await stage.secrets.read(OWNER)).contents
        for bundle, says in ((NEW, "could no longer be reached"), (leaf(), "is not a CA"), (b"", "no valid certificate")):
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


async def test_add_on_secret_that_the_agent_may_not_touch_gets_the_bundle_later_and_the_others_at_once(stage: Stage) -> None:
    addon = AddOn(LOGS, "logging", registrations=(HUB_ACCESS,))
    stage.hub.addons = (replace(addon, name=AddOnName("first"), install_namespace="other"), addon)
    foreign, world, name = MemorySecrets(), stage.world, "first-hub-kubeconfig"
    others = {"other": foreign, "logging": stage.addon_secrets}
    stage.world = lambda: replace(world(), addon_secrets=lambda each: others[each.namespace])  # type: ignore[method-assign]
    bundle = stage.hub.authority.certificate + NEW
    async with stage.at_work():
        await until(lambda: foreign.names and stage.addon_secrets.names)
        foreign.refuse_reads = ForbiddenError("it belongs to another agent")
        stage.hub.push_trust(bundle)
        await until_installed(stage, bundle)
        await all_say(stage, bundle)
        old, foreign.refuse_reads = foreign.contents(name)["kubeconfig"], None
        assert with_authority(old, bundle) != old
        stage.scheduler.wake("addon-registration")
        await until(lambda: foreign.contents(name)["kubeconfig"] == with_authority(old, bundle))


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
        stage.scheduler.wake("addon-registration")
        stage.scheduler.wake("certificate-rotation")
        await until(lambda: len(stage.hub.session.beats) > 3)
        assert len(stage.hub.issued) == 4, "level-triggered, and once"


async def edit(stage: Stage, name: str, **contents: bytes | None) -> None:
    present = await stage.secrets.read(name)
    merged = {**present.contents, **{key.replace("_", "-"): value for key, value in contents.items()}}
    kept = {key: value for key, value in merged.items() if value is not None}
    await stage.secrets.write(name, kept, present.version)


async def test_the_secret_of_the_release_before_is_taken_over_without_a_new_registration(joined: Stage) -> None:
    """It names no hub, keeps no epoch, and there is no slot."""
    await edit(joined, OWNER, hub_id=None, epoch=None)
    await joined.secrets.delete(SLOT)
    before = (await joined.secrets.read(OWNER)).contents["tls.crt"]
    await joined.joins()
    contents = (await joined.secrets.read(OWNER)).contents
    assert (contents["tls.crt"], contents[HUB_ID]) == (before, HUB.encode())
    assert (await joined.secrets.read(SLOT)).contents["tls.crt"] == before
    assert len(joined.hub.issued) == len(joined.hub.requests) == 1


async def test_the_credential_of_a_hub_that_is_left_stays_in_its_slot(joined: Stage) -> None:
    """Also when the release before left it in the owner's secret alone, and the agent leaves that hub at once."""
    await joined.secrets.delete(SLOT)
    ownership = OwnerRecord(joined.secrets, joined.clock, joined.clock)
    before = await ownership.read()
    await ownership.give(before, OTHER, {"tls.crt": b"new"})
    assert (await joined.secrets.read(SLOT)).contents["tls.crt"] == before.contents["tls.crt"]
    assert (await ownership.read()).hub_id == OTHER


async def test_a_request_of_the_release_before_is_gone_on_with(stage: Stage) -> None:
    """Its slot holds nothing but the pending request."""
    stage.hub.approve = False
    async with stage.running():
        await until(lambda: stage.hub.requests)
    (request,) = stage.hub.requests
    stage.hub.approve_request(request)
    await stage.joins()
    assert list(stage.hub.requests) == [request]
    assert await nothing_pends(stage.secrets)


async def test_an_owners_secret_of_last_week_gives_way_to_the_newer_credential_in_the_slot(joined: Stage) -> None:
    last_week = (await joined.secrets.read(OWNER)).contents
    joined.clock.advance(timedelta(days=25))
    async with joined.running():
        await until(lambda: len(joined.hub.issued) == 2 and joined.hub.session.beats)
        await until(lambda: pki.parse_certificate(joined.hub.session.identity.certificate).serial == joined.hub.issued[1])
    present = await joined.secrets.read(OWNER)
    await joined.secrets.write(OWNER, last_week, present.version)
    async with joined.running():
        await until(lambda: joined.hub.open_sessions and joined.hub.session.beats)
        assert pki.parse_certificate(joined.hub.session.identity.certificate).serial == joined.hub.issued[1]
    assert ((await joined.secrets.read(OWNER)).contents["tls.crt"], len(joined.hub.issued)) == (present.contents["tls.crt"], 2)


async def test_a_renewal_never_writes_over_a_hub_that_became_the_owner_meanwhile(joined: Stage) -> None:
    """Two copies of an agent, one of them stopped and continued: the late one keeps its new certificate in its own slot."""
    await edit(joined, OWNER, hub_id=OTHER.encode(), epoch=b"7")
    slot, owner = Slot(joined.secrets, SLOT), Slot(joined.secrets, OWNER)
    before = (await joined.secrets.read(OWNER)).contents
    with pytest.raises(ConflictError, match="has become the owner"):
        await OwnedSlot(slot, owner, HUB).change(lambda present: {**present, "tls.crt": b"late"})
    assert (await joined.secrets.read(OWNER)).contents == before
    assert (await joined.secrets.read(SLOT)).contents["tls.crt"] == b"late"


def test_the_owner_is_whom_the_secret_names_else_whose_kubeconfig_it_holds(stage: Stage) -> None:
    kubeconfig = MemoryHub(stage.clock, hub_id=OTHER).bootstrap_kubeconfig()
    assert (owner_of({}), owner_of({"tls.crt": b"x", "kubeconfig": b"nonsense: ["})) == (None, None)
    assert owner_of({"tls.crt": b"x", "kubeconfig": kubeconfig}) == OTHER
    assert owner_of({"tls.crt": b"x", "kubeconfig": kubeconfig, HUB_ID: HUB.encode()}) == HUB


@pytest.fixture
def ownership(secrets: MemorySecrets) -> OwnerRecord:
    return OwnerRecord(secrets, ManualClock(), ManualClock())


async def test_a_change_of_owner_raises_the_epoch_and_keeps_others_keys(ownership: OwnerRecord, secrets: MemorySecrets) -> None:
    first, present = await ownership.give(await ownership.read(), A, FIRST), await secrets.read(OWNER)
    await secrets.write(OWNER, {**present.contents, "note": b"theirs"}, present.version)
    second = await ownership.give(first, B, SECOND, reported_epoch=first.epoch + 100)
    assert (second.hub_id, second.contents["tls.crt"], second.contents["note"]) == (B, b"second", b"theirs")
    assert second.epoch == first.epoch + 101
    assert (await ownership.read()).same_order(second)
    assert (await ownership.give(second, B, FIRST)).epoch == second.epoch, "the same owner keeps its epoch"


async def test_of_two_copies_that_change_the_owner_one_sees_that_it_was_overtaken(ownership: OwnerRecord) -> None:
    known = await ownership.give(await ownership.read(), A, FIRST)
    won = await ownership.give(known, B, SECOND)
    await check_refusal_of(OwnerConflictError, ownership.give(known, A, FIRST), match="another copy")
    await check_refusal_of(OwnerConflictError, ownership.raise_epoch(known))
    await check_refusal_of(OwnerConflictError, ownership.confirm(known))
    await ownership.confirm(won)


async def test_raised_epoch_keeps_the_renewed_credential(ownership: OwnerRecord, secrets: MemorySecrets) -> None:
    known, present = await ownership.give(await ownership.read(), A, FIRST), await secrets.read(OWNER)
    await secrets.write(OWNER, {**present.contents, "tls.crt": b"renewed", "note": b"theirs"}, present.version)
    known = await ownership.raise_epoch(known, reported_epoch=known.epoch + 5)
    assert (known.contents["tls.crt"], known.contents["note"]) == (b"renewed", b"theirs")
    for left in (None, {"tls.crt": b"last week", "hub-id": B.encode(), "epoch": b"1"}):
        before = known
        await secrets.delete(OWNER)
        if left is not None:
            await secrets.write(OWNER, left, None)
        known = await ownership.raise_epoch(before)
        assert (known.hub_id, known.contents["tls.crt"], known.epoch) == (A, b"renewed", before.epoch + 1)


async def test_secret_that_others_change_between_read_and_write_is_written_all_the_same(secrets: MemorySecrets) -> None:
    slot = Slot(secrets, "s")
    assert await slot.read() == {}
    await secrets.write("s", {"theirs": b"1"}, None)
    assert await slot.change(lambda before: {**before, "ours": b"2"}) == {"theirs": b"1", "ours": b"2"}
    present = await secrets.read("s")
    await secrets.write("s", {**present.contents, "more": b"3"}, present.version)
    assert await slot.change(lambda before: {**before, "ours": b"4"}) == {"theirs": b"1", "more": b"3", "ours": b"4"}
    await secrets.delete("s")
    assert await slot.change(lambda before: {**before, "ours": b"3"}) == {"ours": b"3"}


class Disturbed(MemorySecrets):
    """Counts what is asked; `conflict` is the answer to every write."""

    conflict: ConflictError | None = None
    reads = writes = 0

    async def read(self, name: str) -> SecretSnapshot:
        self.reads += 1
        return await super().read(name)

    async def write(self, name: str, contents: Contents, version: str | None) -> SecretSnapshot:
        self.writes += 1
        if self.conflict is not None:
            raise self.conflict
        return await super().write(name, contents, version)


async def test_a_write_after_a_read_costs_no_second_read_and_a_secret_that_changes_all_the_time_is_given_up() -> None:
    secrets = Disturbed()
    slot = Slot(secrets, "s")
    await slot.read()
    for content in (b"1", b"2"):
        await slot.change(lambda _, content=content: {"a": content})  # type: ignore[misc]
    assert (secrets.reads, secrets.writes) == (1, 2)
    secrets.conflict = ConflictError('secret "s" changed since it was read')
    await check_refusal_of(ConflictError, Slot(secrets, "s").change(lambda before: before))
    assert secrets.writes == 2 + ATTEMPTS


class UselessClient(MemoryHubClient):
    """What its hub issues cannot be read."""

    async def follow_request(self, name: str) -> AsyncGenerator[CSRState, None]:
        async for state in super().follow_request(name):
            yield replace(state, certificate=state.certificate and b"no certificate")


def csr_flow() -> CSRFlow:
    secrets = MemorySecrets()
    wanted = WantedCertificate(AgentIdentity(NAMES, "uid"), NAMES.subject, ensure_cluster=True)
    return CSRFlow(wanted, pending=Slot(secrets, "pending"), target=Slot(secrets, "target"), extra={})


def client_of(hub: MemoryHub) -> UselessClient:
    return UselessClient(hub, connection_of(parse_kubeconfig(hub.bootstrap_kubeconfig(), source="a file")).identity)


async def test_a_signer_that_issues_nothing_of_use_is_asked_for_two_certificates_and_one_more_each_time_again() -> None:
    hub = MemoryHub(ManualClock())
    client, wanted = client_of(hub), csr_flow()
    for asked in (2, 3):
        await check_refusal_of(UnavailableError, wanted.run(client), match="is unusable")
        assert hub.calls.count("submit_request") == asked


class EarlyClient(MemoryHubClient):
    """Its hub's database is an hour ahead of the hub."""

    async def follow_request(self, name: str) -> AsyncGenerator[CSRState, None]:
        async for state in super().follow_request(name):
            yield replace(state, hub_time=present(state.hub_time) - timedelta(hours=1))


async def test_a_certificate_that_begins_later_replaces_nothing() -> None:
    hub, wanted = MemoryHub(ManualClock()), csr_flow()
    await check_refusal_of(UnavailableError, wanted.run(EarlyClient(hub, client_of(hub)._identity)), match="and not now")


async def test_refused_name_is_reported_with_the_option_that_gives_another() -> None:
    hub = MemoryHub(ManualClock())
    hub.faults["ensure_cluster"] = ForbiddenError("the bootstrap credential is for cluster edge1")
    with pytest.raises(ForbiddenError, match='is for cluster edge1; this agent joins as "berlin": --cluster-name NAME'):
        await csr_flow().run(client_of(hub))


async def test_a_certificate_that_cannot_be_read_costs_a_new_key_and_no_crash(stage: Stage) -> None:
    """OCM's agent uses what it read of the certificate before it looks whether that worked."""
    stage.hub.approve = False
    async with stage.running():
        await until(lambda: stage.hub.requests)
        (first,) = stage.hub.requests.values()
        first.certificate, first.state = b"-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n", "issued"
        stage.hub.approve = True
        stage.hub.changed()
        await until(lambda: stage.hub.sessions)
    assert len({request.pem for request in stage.hub.requests.values()}) == 2


def test_the_hub_kubeconfig_keeps_the_name_that_the_hubs_certificate_must_have() -> None:
    """OCM's agent drops `tls-server-name` between bootstrap and hub kubeconfig."""
    entry = ClusterEntry("hub", "https://10.0.0.1:6443", b"ca", tls_server_name="hub.example.com")
    assert yaml.safe_load(write_hub_kubeconfig(entry))["clusters"][0]["cluster"]["tls-server-name"] == "hub.example.com"


async def test_the_condition_of_a_rotation_is_reported_though_its_save_failed_at_first(stage: Stage) -> None:
    """OCM's agent loses the condition when the save is repeated."""
    async with stage.at_work():
        leaf = pki.parse_certificate((await stage.secrets.read(OWNER)).contents["tls.crt"])
        stage.secrets.refuse_writes = UnavailableError("etcd is away")  # type: ignore[attr-defined]
        stage.clock.advance(rotate_at(leaf.serial, leaf.not_before, leaf.not_after) - stage.clock.now() + timedelta(1))
        stage.scheduler.wake("certificate-rotation")
        await until(lambda: "certificate-rotation" in stage.scheduler.jobs)
        stage.secrets.refuse_writes = None  # type: ignore[attr-defined]
        stage.scheduler.wake("certificate-rotation")

        def reported() -> list[str]:
            reports = [report for session in stage.hub.sessions for report in session.reports]
            return [entry.status for report in reports for entry in report.conditions if entry.type == CERTIFICATE_ROTATED]

        await until(lambda: reported()[-1:] == [TRUE])


async def test_expired_credential_says_why_a_bootstrap_credential_is_needed(joined: Stage) -> None:
    contents = dict((await joined.secrets.read(OWNER)).contents)
    assert recovery_obstacle(contents) == ""
    over_the_api = ClusterEntry("hub", "https://127.0.0.1:6443", joined.hub.authority.certificate)
    assert "driver csr" in recovery_obstacle({**contents, "kubeconfig": write_hub_kubeconfig(over_the_api)})
    del contents["recovery.crt"]
    assert "has no recovery certificate" in recovery_obstacle(contents)


async def test_a_rebuilt_cluster_under_an_old_name_is_shown_what_to_do(stage: Stage) -> None:
    stage.options = replace(stage.options, cluster_name="berlin")
    await stage.joins()
    stage.cluster._uid = "of-the-cluster-that-was-rebuilt"
    stage.secrets = type(stage.secrets)()
    stage.directory.contents.clear()
    stage.file.write_bytes(stage.hub.bootstrap_kubeconfig())
    async with stage.running() as agent:
        await until(lambda: "belongs to another cluster" in agent.progress.ready().text)
    assert len(stage.hub.sessions) == 1


async def test_deleted_secrets_are_created_again_and_reported(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spoke.credentials.slot.RESTORE_PERIOD", timedelta(milliseconds=10))
    secrets = stage.secrets
    assert isinstance(secrets, MemorySecrets)
    async with stage.at_work():
        await until(lambda: secrets.names == {OWNER, SLOT})
        before = {name: secrets.contents(name) for name in (OWNER, SLOT)}
        for name in (OWNER, SLOT):
            await secrets.delete(name)
        await until(lambda: {name: secrets.contents(name) for name in (OWNER, SLOT)} == before)
        assert len(stage.hub.requests) == len(stage.hub.sessions) == 1, "nobody registers anew"


async def test_nothing_is_created_again_after_leaving_or_without_the_lease_or_that_the_agent_deleted_itself() -> None:
    inner, events = MemorySecrets(), list[str]()
    secrets = RestoringSecrets(inner, lambda reason, _: events.append(reason))
    for name in (OWNER, SLOT, "east"):
        await secrets.write(name, {"a": b"1"}, None)
        await inner.delete(name)
        await secrets.read(name)
    assert inner.names == {OWNER, SLOT}, "a bootstrap kubeconfig is not the agent's"
    assert events == ["SecretRestored"] * 2
    await inner.delete(SLOT)
    for refusal in (NotLeaderError("another process works"), ForbiddenError("the namespace is being terminated")):
        inner.refuse_writes = refusal
        assert (await secrets.read(SLOT)).version is None
    inner.refuse_writes = None
    await secrets.read(SLOT)
    await secrets.delete(SLOT)
    assert (await secrets.read(SLOT)).version is None
    left = await inner.read(OWNER)
    await secrets.write(SLOT, {"a": b"1"}, None)
    await inner.write(OWNER, {LEFT: LeftMark("", frozenset()).content()}, left.version)
    await inner.delete(SLOT)
    assert ((await secrets.read(SLOT)).version, inner.names) == (None, {OWNER})
