"""What the first start leaves: the administrator's kubeconfig, its Secret, the hub's identity, and keys that replicas share."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from hub.__main__ import main
from hub.api.certificates import Lifetimes
from hub.issuer.local import LocalIssuer
from hub.ports.identities import KeySecret
from hub.replica import keys as key_files
from hub.replica.admin_kubeconfig import ADMIN_FILE, AGAIN, KUBECONFIG, SECRET_EVERY, TRUST, AdminKubeconfig, AdminSecret
from hub.replica.installation import SUFFIX, Addresses, entry, settle
from hub.settings.fields import Address
from machinery import pki
from machinery.client.kubeconfig import ClusterEntry, parse_kubeconfig, read_kubeconfig
from machinery.errors import AlreadyExistsError, ForbiddenError, InvalidError
from machinery.identity import HubId
from machinery.pki import TokenKeys
from machinery.pki.encryption import Seal
from machinery.runtime.clock import ManualClock
from machinery.runtime.directory import DataDirectory
from tests.checks import check_refusal, check_refusal_of
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import fresh_store
from tests.fakes.virtual_time import in_the_loops_time

HUB = HubId("0d6c4a04-2f7c-4c5e-9d1c-0b6a4e6f2a11")
LIFETIMES = Lifetimes()
CLAIMS = {"sub": "ann"}


class World:
    """A data directory and a store; `issuer`: the CA of an installation."""

    issuer: LocalIssuer

    def __init__(self, directory: DataDirectory) -> None:
        self.clock = ManualClock()
        self.directory = directory
        self.store = fresh_store(self.clock)

    @property
    def keys(self) -> key_files.KeyFolder:
        return key_files.KeyFolder(self.directory)

    def cluster(self, https: str = "127.0.0.1") -> ClusterEntry:
        return entry(HUB, Addresses(Address("127.0.0.1", 8443), Address(https, 6443), (), ()), self.issuer.trust_bundle)

    async def keep(self, cluster: ClusterEntry | None = None) -> bytes:
        entry = cluster or self.cluster()
        admin = AdminKubeconfig(self.directory, self.store, self.issuer, entry, lifetimes=LIFETIMES, clock=self.clock)
        return (await admin.keep()).read_bytes()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with DataDirectory(tmp_path / "hub", "hub") as directory:
        yield World(directory)


@pytest.fixture
def installed(world: World) -> World:
    world.issuer = LocalIssuer.open(world.directory.path, LIFETIMES, world.clock.now())
    return world


def chain(world: World) -> bytes:
    return read_kubeconfig(world.directory.path / ADMIN_FILE).require_credential().chain


async def test_kubeconfig_is_written_again_only_for_what_has_changed(installed: World, tmp_path: Path) -> None:
    for content in (b"", b"not: [yaml", b"apiVersion: v1\nkind: Config\n"):
        installed.directory.write(ADMIN_FILE, content)
        await installed.keep()
        assert chain(installed), "a file that cannot be read is replaced"
    before, kept = await installed.keep(), chain(installed)
    assert await installed.keep() == before
    after = await installed.keep(installed.cluster("hub.example.org"))
    assert after != before
    assert b"https://hub.example.org:6443" in after
    assert chain(installed) == kept, "another address keeps the certificate"
    installed.clock.advance(LIFETIMES.operator * 0.6)
    await installed.keep()
    assert chain(installed) == kept
    installed.clock.advance(LIFETIMES.operator * 0.2)
    await installed.keep()
    renewed = chain(installed)
    assert renewed != kept, "a certificate near its end is replaced"
    other = tmp_path / "other"
    other.mkdir()
    installed.issuer = LocalIssuer.open(other, LIFETIMES, installed.clock.now())
    await installed.keep()
    assert chain(installed) != renewed, "and so is one of another CA"


def test_id_and_suffix_of_the_first_start_stay(store: InlineStore, clock: ManualClock) -> None:
    first = store.transact(settle)
    assert store.transact(settle) == first
    foreign = fresh_store(clock)
    foreign.transact(lambda tx: tx.facts.set(SUFFIX, "example.org"))
    check_refusal(InvalidError, foreign.transact, settle, match=r'API groups end in "example\.org"')
    with_suffix = fresh_store(clock)
    first = with_suffix.transact(settle, "example.org")
    assert with_suffix.transact(settle, "example.org") == first
    check_refusal(InvalidError, with_suffix.transact, settle, match="start this hub with --api-group-suffix=")


class SecretInMemory(KeySecret):
    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.refused = False
        self.reads = self.writes = 0

    async def read(self) -> Mapping[str, bytes]:
        self.reads += 1
        if self.refused:
            raise ForbiddenError("secrets is forbidden")
        return dict(self.held)

    async def write(self, changes: Mapping[str, bytes | None]) -> None:
        self.writes += 1
        self.held |= {name: value for name, value in changes.items() if value is not None}


class Hub:
    """Replicas of one hub: a store and a CA that they share, and a data directory of each."""

    def __init__(self, world: World, directory: Path) -> None:
        self.clock, self.store, self.issuer, self.directory = world.clock, world.store, world.issuer, directory
        self.secret = SecretInMemory()

    @contextmanager
    def replica(self, name: str, host: str = "hub.example.com") -> Iterator[AdminSecret]:
        with DataDirectory(self.directory / name, "hub") as files:
            cluster = entry(HUB, Addresses(Address(host, 8443), Address(host, 6443), (), ()), self.issuer.trust_bundle)
            admin = AdminKubeconfig(files, self.store, self.issuer, cluster, lifetimes=LIFETIMES, clock=self.clock)
            yield AdminSecret(self.secret, admin)


@pytest.fixture
def hub(installed: World, tmp_path: Path) -> Hub:
    return Hub(installed, tmp_path)


async def test_the_first_look_makes_it_and_no_other_replica_writes_what_is_good(hub: Hub) -> None:
    with hub.replica("one") as one, hub.replica("two") as two:
        assert await one.look()
        made = dict(hub.secret.held)
        assert not await two.look()
        assert not await one.look()
    assert (hub.secret.held, hub.secret.writes, made[TRUST]) == (made, 1, hub.issuer.trust_bundle)
    found = parse_kubeconfig(made[KUBECONFIG], source="secret")
    assert found.cluster.server == "https://hub.example.com:6443"
    assert found.require_credential().chain


@in_the_loops_time
async def test_a_right_to_the_secret_that_is_missing_is_looked_at_again_soon(hub: Hub) -> None:
    with hub.replica("one") as one:
        assert await one.look()
        hub.secret.refused, hub.secret.reads = True, 0
        looking = asyncio.create_task(one.run())
        await asyncio.sleep(59)
        assert hub.secret.reads == 59 // AGAIN.total_seconds() + 1
        hub.secret.refused, hub.secret.reads = False, 0
        await asyncio.sleep(SECRET_EVERY.total_seconds())
        assert hub.secret.reads == 1
        looking.cancel()


def revoke(hub: Hub) -> None:
    chain = parse_kubeconfig(hub.secret.held[KUBECONFIG], source="secret").require_credential().chain
    hub.store.transact(lambda tx: tx.certificates.revoke([pki.parse_certificate(chain).serial], tx.now, "KeyCompromise"))


async def test_wrong_content_another_address_or_a_certificate_near_its_end_is_replaced(hub: Hub) -> None:
    with hub.replica("one") as one:
        await one.look()
        for spoilt in ({KUBECONFIG: b""}, {KUBECONFIG: b"apiVersion: v1\n"}, {TRUST: b"another"}):
            hub.secret.held |= spoilt
            assert await one.look(), spoilt
            assert not await one.look(), spoilt
        before = hub.secret.held[KUBECONFIG]
        hub.clock.advance(LIFETIMES.operator * 2 / 3 + timedelta(hours=1))
        assert await one.look()
        assert hub.secret.held[KUBECONFIG] != before
        for is_revoked in (True, False):
            before = hub.secret.held[KUBECONFIG]
            revoke(hub) if is_revoked else hub.clock.set_forward(-timedelta(days=1))  # the clock was ahead
            assert (await one.look(), await one.look()) == (True, False)
            assert hub.secret.held[KUBECONFIG] != before
    with hub.replica("one", host="other.example.com") as one:
        assert await one.look()
    assert b"https://other.example.com:6443" in hub.secret.held[KUBECONFIG]


async def test_a_database_knows_its_ca_and_takes_no_other(world: World, tmp_path: Path) -> None:
    first = await key_files.keep_authority(world.keys, world.store, LIFETIMES, world.clock.now())
    assert (
        await key_files.keep_authority(world.keys, world.store, LIFETIMES, world.clock.now())
    ).trust_bundle == first.trust_bundle
    with (
        DataDirectory(tmp_path / "empty", "hub") as empty,
        pytest.raises(InvalidError, match="whose CA is not in the data directory"),
    ):
        await key_files.keep_authority(key_files.KeyFolder(empty), world.store, LIFETIMES, world.clock.now())
    assert not (tmp_path / "empty" / "ca.crt").exists()
    with DataDirectory(tmp_path / "other", "hub") as other:
        LocalIssuer.open(other.path, LIFETIMES, world.clock.now())
        with pytest.raises(InvalidError, match="is not that of the hub in the database"):
            await key_files.keep_authority(key_files.KeyFolder(other), world.store, LIFETIMES, world.clock.now())


async def test_half_a_ca_is_made_again_at_the_first_start_only_and_its_key_is_kept(world: World) -> None:
    world.directory.write("ca.key", b"half")
    await key_files.keep_authority(world.keys, world.store, LIFETIMES, world.clock.now())
    assert world.directory.read("ca.key.unused") == b"half"
    assert world.directory.read("ca.crt")
    (world.directory.path / "ca.key").unlink()
    with pytest.raises(InvalidError, match="restore it from a backup"):
        await key_files.keep_authority(world.keys, world.store, LIFETIMES, world.clock.now())


async def kept_seal(world: World, file: Path | None = None) -> Seal:
    seal, is_new = key_files.find_seal(world.keys, file)
    await key_files.keep_seal(world.keys, world.store, seal, is_new=is_new)
    return seal


async def test_key_for_secrets_is_made_once_with_mode_0600_and_never_replaced(world: World) -> None:
    first = await kept_seal(world)
    assert (world.directory.path / key_files.SEAL_FILE).stat().st_mode & 0o777 == 0o600
    assert (await kept_seal(world)).header == first.header
    (world.directory.path / key_files.SEAL_FILE).unlink()
    await check_refusal_of(InvalidError, kept_seal(world), match=r"restore secrets\.key into the data directory")
    assert not (world.directory.path / key_files.SEAL_FILE).exists()


async def test_key_file_is_used_in_place_of_the_data_directory(world: World, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    check_refusal(InvalidError, key_files.find_seal, world.keys, file, match="keys, cannot be read: No such file")
    old, new = Seal.generate(), Seal.generate()
    file.write_bytes(old.written())
    assert (await kept_seal(world, file)).header == old.header
    assert not (world.directory.path / key_files.SEAL_FILE).exists()
    file.write_bytes(new.written() + old.written())
    assert (await kept_seal(world, file)).header == new.header
    file.write_bytes(old.written())
    await check_refusal_of(InvalidError, kept_seal(world, file), match="is not here")


async def started(keys: key_files.KeyFolder, world: World) -> TokenKeys:
    """A replica's start, as far as keys go."""
    seal, is_new = key_files.find_seal(keys, None)
    await key_files.keep_authority(keys, world.store, LIFETIMES, world.clock.now())
    await key_files.keep_seal(keys, world.store, seal, is_new=is_new)
    return await key_files.keep_token_keys(keys, world.store, world.clock.now())


def given(folder: Path, world: World) -> key_files.KeyFolder:
    return key_files.KeyFolder.of(world.directory, folder, alone=False)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_command_creates_keys_once_with_mode_0600(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    made = CliRunner().invoke(main, ["keys", "create", str(folder)])
    assert (made.exit_code, "--keys-dir" in made.output) == (0, True)
    assert sorted(path.name.split("-")[0] for path in folder.iterdir()) == ["ca.crt", "ca.key", "secrets.key", "token"]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    before, again = content(folder), CliRunner().invoke(main, ["keys", "create", str(folder)])
    assert (again.exit_code, "has keys already" in again.output) == (1, True)
    check_refusal(AlreadyExistsError, key_files.create_keys, folder, LIFETIMES, ManualClock().now(), match="has keys already")
    assert content(folder) == before


async def test_replica_that_lacks_a_key_is_refused_with_advice(world: World, tmp_path: Path) -> None:
    for missing in ("ca.crt", "ca.key", "secrets.key", "token-*.key"):
        folder = tmp_path / missing.strip("*")
        key_files.create_keys(folder, LIFETIMES, world.clock.now())
        for path in folder.glob(missing):
            path.unlink()
        with pytest.raises(InvalidError, match=r"hub keys create|restore it from a backup"):
            await started(given(folder, world), world)


async def test_a_replica_with_other_keys_is_refused(world: World, tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    key_files.create_keys(ours, LIFETIMES, world.clock.now())
    key_files.create_keys(others, LIFETIMES, world.clock.now())
    await started(given(ours, world), world)
    await check_refusal_of(InvalidError, started(given(others, world), world), match="is not that of the hub in the database")
    for other in others.glob("token-*.key"):
        (ours / other.name).write_bytes(other.read_bytes())
    with pytest.raises(InvalidError, match="signs ServiceAccounts' tokens with a key that is not in the folder"):
        await started(given(ours, world), world)
    (ours / key_files.SEAL_FILE).write_bytes((others / key_files.SEAL_FILE).read_bytes())
    await check_refusal_of(InvalidError, started(given(ours, world), world), match="seals Secrets with the key")


async def test_a_second_machine_without_the_first_ones_keys_is_refused_and_keeps_none(world: World, tmp_path: Path) -> None:
    await started(key_files.KeyFolder(world.directory, alone=False), world)
    with DataDirectory(tmp_path / "second", "hub") as second:
        keys = key_files.KeyFolder(second, alone=False)
        with pytest.raises(InvalidError, match=r"copy of ca\.crt, ca\.key, secrets\.key and token-\*\.key"):
            await started(keys, world)
        assert not list(second.path.glob("*.key"))
        for name in ("ca.crt", "ca.key", "secrets.key"):
            second.write(name, world.directory.read(name) or b"")
        with pytest.raises(InvalidError, match="for ServiceAccounts' tokens are not in the data directory"):
            await started(keys, world)
        for path in world.directory.path.glob("token-*.key"):
            second.write(path.name, path.read_bytes())
        await started(keys, world)


class Overtaken(InlineStore):
    """Between a replica's look at this store and its word another replica settles its keys."""

    def __init__(self, clock: ManualClock, by: key_files.KeyFolder) -> None:
        super().__init__(clock)
        self.now = clock.now()
        self._by: key_files.KeyFolder | None = by

    async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        found = await super().read(query, *args, **kwargs)
        by, self._by = self._by, None
        if by is not None:
            await key_files.keep_authority(by, self, LIFETIMES, self.now)
        return found


async def test_of_two_that_make_a_ca_for_one_database_the_second_is_refused(world: World, tmp_path: Path) -> None:
    store = Overtaken(world.clock, key_files.KeyFolder(world.directory, alone=False))
    with DataDirectory(tmp_path / "second", "hub") as second:
        with pytest.raises(InvalidError, match="another replica initialized this database at the same time"):
            await key_files.keep_authority(key_files.KeyFolder(second, alone=False), store, LIFETIMES, world.clock.now())
        assert not list(second.path.glob("ca.*"))


async def test_a_newer_key_for_tokens_is_given_to_all_replicas_one_after_the_other(world: World, tmp_path: Path) -> None:
    key_files.create_keys(tmp_path / "keys", LIFETIMES, world.clock.now())
    before = content(tmp_path / "keys")
    old, other = await started(given(tmp_path / "keys", world), world), await started(given(tmp_path / "keys", world), world)
    assert other.verified(old.sign(CLAIMS)) == CLAIMS
    assert content(tmp_path / "keys") == before, "the folder is only read"
    assert not list(world.directory.path.glob("*.key"))
    world.clock.advance(timedelta(days=91))
    with DataDirectory(tmp_path / "keys", "hub") as folder:
        key_files.make_token_key(folder, world.clock.now())
    new = await started(given(tmp_path / "keys", world), world)
    assert (new.verified(old.sign(CLAIMS)), old.verified(new.sign(CLAIMS))) == (CLAIMS, None)
    (newest,) = (tmp_path / "keys").glob(f"token-{world.clock.now():%Y%m%d}*.key")
    newest.unlink()
    with pytest.raises(InvalidError, match="signs ServiceAccounts' tokens with a key that is not in the folder"):
        await started(given(tmp_path / "keys", world), world)


async def test_only_a_hub_that_is_alone_exchanges_its_keys_for_tokens_by_itself(world: World) -> None:
    shared, alone = key_files.KeyFolder(world.directory, alone=False), key_files.KeyFolder(world.directory)
    await started(shared, world)
    world.clock.advance(timedelta(days=91))
    await started(shared, world)
    assert len(list(world.directory.path.glob("token-*.key"))) == 1
    await started(alone, world)
    assert len(list(world.directory.path.glob("token-*.key"))) == 2


def open_token_keys(directory: DataDirectory, now: datetime) -> TokenKeys:
    key_files.exchange_token_keys(directory, now)
    return TokenKeys([each.key for each in key_files.read_token_keys(directory)])


def test_key_for_tokens_signs_for_90_days_and_verifies_until_its_last_token_has_ended(tmp_path: Path) -> None:
    now, quarter = ManualClock().now(), timedelta(days=90)

    def files() -> list[str]:
        return sorted(path.name for path in tmp_path.glob("token-*"))

    with DataDirectory(tmp_path, "hub") as directory:
        old = open_token_keys(directory, now).sign(CLAIMS)
        assert (files(), (tmp_path / files()[0]).stat().st_mode & 0o777) == (["token-20260101T000000Z.key"], 0o600)
        assert (open_token_keys(directory, now + quarter).verified(old), len(files())) == (CLAIMS, 1)
        exchanged = open_token_keys(directory, now + quarter + timedelta(seconds=1))
        assert exchanged.verified(old) == CLAIMS
        assert exchanged.sign(CLAIMS).split(".")[0] != old.split(".")[0]
        found = [
            open_token_keys(directory, now + 1.1 * number * quarter).verified(old) for number in range(2, key_files.KEPT + 2)
        ]
        assert found == [*[CLAIMS] * (key_files.KEPT - 1), None]
        assert "token-20260101T000000Z.key" not in files()


@pytest.mark.parametrize("starts", [(800, 500), (300, 500), (91, 830, 101)], ids=["clock ahead", "long uptime", "both"])
def test_a_start_ends_no_token_that_may_still_be_valid(tmp_path: Path, starts: tuple[int, ...]) -> None:
    now = ManualClock().now()
    with DataDirectory(tmp_path, "hub") as directory:
        token = open_token_keys(directory, now).sign(CLAIMS)  # the process signs with this key until the next start
        assert [open_token_keys(directory, now + timedelta(days=day)).verified(token) for day in starts] == [CLAIMS] * len(
            starts
        )


def test_key_for_tokens_that_cannot_be_read_stops_the_start_and_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "token-20260101T000000Z.key").write_text("canary")
    (tmp_path / "token-other.key").write_text("not ours")
    with DataDirectory(tmp_path, "hub") as directory, pytest.raises(InvalidError) as refused:
        open_token_keys(directory, ManualClock().now())
    assert "canary" not in refused.value.message
