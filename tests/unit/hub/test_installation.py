"""What the first start leaves: the administrator's kubeconfig, its Secret, and the hub's identity."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from hub.adminsecret import KUBECONFIG, LOOK_EVERY, TRUST, AdminSecret
from hub.domain.certificate import Lifetimes, Purpose
from hub.fields import Address
from hub.installation import ADMIN_FILE, SUFFIX, Addresses, AdminKubeconfig, entry, keep_admin_kubeconfig, settle
from hub.installation import Addresses as At
from hub.issuer import LocalIssuer
from hub.ports import KeySecret
from hub.services import certificates
from machinery import pki
from machinery.clock import ManualClock
from machinery.directory import DataDirectory
from machinery.errors import ForbiddenError, InvalidError
from machinery.identity import OPERATOR_GROUP, HubId
from machinery.kubeconfig import ClusterEntry, parse_kubeconfig, read_kubeconfig
from tests.checks import present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import fresh_store

HUB = HubId("0d6c4a04-2f7c-4c5e-9d1c-0b6a4e6f2a11")
LIFETIMES = Lifetimes()


class World:
    """A data directory with a CA, and a store."""

    def __init__(self, directory: DataDirectory) -> None:
        self.clock = ManualClock()
        self.directory = directory
        self.store = fresh_store(self.clock)
        self.issuer = LocalIssuer.open(directory.path, LIFETIMES, self.clock.now())

    def cluster(self, https: str = "127.0.0.1") -> ClusterEntry:
        at = At(Address("127.0.0.1", 8443), Address(https, 6443), (), ())
        return entry(HUB, at, self.issuer.trust_bundle)

    async def keep(self, cluster: ClusterEntry | None = None) -> bytes:
        path = await keep_admin_kubeconfig(
            self.directory, self.store, self.issuer, cluster or self.cluster(), lifetimes=LIFETIMES, now=self.clock.now()
        )
        return path.read_bytes()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with DataDirectory(tmp_path, "hub") as directory:
        yield World(directory)


def chain(world: World) -> bytes:
    return read_kubeconfig(world.directory.path / ADMIN_FILE).require_credential().chain


async def test_the_admin_kubeconfig_leads_to_both_doors_as_a_recorded_operator(world: World) -> None:
    await world.keep()
    found = read_kubeconfig(world.directory.path / ADMIN_FILE)
    assert found.cluster.server == "https://127.0.0.1:6443"
    assert found.require_endpoint().grpc_server == "127.0.0.1:8443"
    assert found.require_endpoint().hub_id == HUB
    record = present(world.store.transact(certificates.resolve, pki.parse_certificate(chain(world)).serial))
    assert (record.purpose, record.groups) == (Purpose.OPERATOR, (OPERATOR_GROUP,))


async def test_kubeconfig_is_written_again_only_for_what_has_changed(world: World, tmp_path: Path) -> None:
    for content in (b"", b"not: [yaml", b"apiVersion: v1\nkind: Config\n"):
        world.directory.write(ADMIN_FILE, content)
        await world.keep()
        assert chain(world), "a file that cannot be read is replaced"
    before, kept = await world.keep(), chain(world)
    assert await world.keep() == before
    after = await world.keep(world.cluster("hub.example.org"))
    assert after != before
    assert b"https://hub.example.org:6443" in after
    assert chain(world) == kept, "another address keeps the certificate"
    world.clock.advance(LIFETIMES.operator * 0.6)
    await world.keep()
    assert chain(world) == kept
    world.clock.advance(LIFETIMES.operator * 0.2)
    await world.keep()
    renewed = chain(world)
    assert renewed != kept, "a certificate near its end is replaced"
    other = tmp_path / "other"
    other.mkdir()
    world.issuer = LocalIssuer.open(other, LIFETIMES, world.clock.now())
    await world.keep()
    assert chain(world) != renewed, "and so is one of another CA"


def test_id_and_suffix_of_the_first_start_stay(store: InlineStore, clock: ManualClock) -> None:
    first = store.transact(settle)
    assert store.transact(settle) == first
    foreign = fresh_store(clock)
    foreign.transact(lambda tx: tx.facts.set(SUFFIX, "example.org"))
    with pytest.raises(InvalidError, match=r'API groups end in "example\.org"'):
        foreign.transact(settle)
    with_suffix = fresh_store(clock)
    first = with_suffix.transact(settle, "example.org")
    assert with_suffix.transact(settle, "example.org") == first
    with pytest.raises(InvalidError, match="start it with --api-group-suffix as then"):
        with_suffix.transact(settle)


class SecretInMemory(KeySecret):
    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.refused = False
        self.writes = 0

    async def read(self) -> Mapping[str, bytes]:
        if self.refused:
            raise ForbiddenError("secrets is forbidden")
        return dict(self.held)

    async def write(self, changes: Mapping[str, bytes | None]) -> None:
        self.writes += 1
        self.held |= {name: value for name, value in changes.items() if value is not None}


class Hub:
    """Replicas of one hub: a store and a CA that they share, and a data directory of each."""

    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.store = fresh_store(self.clock)
        self.directory = directory
        (directory / "keys").mkdir()
        self.issuer = LocalIssuer.open(directory / "keys", LIFETIMES, self.clock.now())
        self.secret = SecretInMemory()

    @contextmanager
    def replica(self, name: str, host: str = "hub.example.com") -> Iterator[AdminSecret]:
        at = Addresses(Address(host, 8443), Address(host, 6443), (), ())
        with DataDirectory(self.directory / name, "hub") as files:
            cluster = entry(HUB, at, self.issuer.trust_bundle)
            way_in = AdminKubeconfig(files, self.store, self.issuer, cluster, lifetimes=LIFETIMES, clock=self.clock)
            yield AdminSecret(self.secret, way_in)


@pytest.fixture
def hub(tmp_path: Path) -> Hub:
    return Hub(tmp_path)


async def test_the_first_look_makes_it_and_no_other_replica_writes_what_is_good(hub: Hub) -> None:
    with hub.replica("one") as one, hub.replica("two") as two:
        assert await one.look()
        made = dict(hub.secret.held)
        assert not await two.look()
        assert not await one.look()
    assert hub.secret.held == made
    assert hub.secret.writes == 1
    assert made[TRUST] == hub.issuer.trust_bundle
    found = parse_kubeconfig(made[KUBECONFIG], source="secret")
    assert found.cluster.server == "https://hub.example.com:6443"
    assert found.require_credential().chain


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
    with hub.replica("one", host="other.example.com") as one:
        assert await one.look()
    assert b"https://other.example.com:6443" in hub.secret.held[KUBECONFIG]


async def test_a_right_that_is_missing_ends_nothing_and_is_looked_at_again_soon(hub: Hub) -> None:
    with hub.replica("one") as one:
        hub.secret.refused = True
        assert await one._look() < timedelta(seconds=10)
        hub.secret.refused = False
        assert await one._look() == LOOK_EVERY
    assert hub.secret.held
