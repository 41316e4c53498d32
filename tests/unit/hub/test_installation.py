"""What the first start leaves, and what later starts keep."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hub.domain.certificate import Lifetimes, Purpose
from hub.fields import Address
from hub.installation import ADMIN_FILE, SUFFIX, entry, keep_admin_kubeconfig, settle
from hub.installation import Addresses as At
from hub.issuer import LocalIssuer
from hub.services import certificates
from machinery import pki
from machinery.clock import ManualClock
from machinery.directory import DataDirectory
from machinery.errors import InvalidError
from machinery.identity import OPERATOR_GROUP, HubId
from machinery.kubeconfig import ClusterEntry, read_kubeconfig
from tests.fakes.memory_store import MemoryStore

HUB = HubId("0d6c4a04-2f7c-4c5e-9d1c-0b6a4e6f2a11")
LIFETIMES = Lifetimes()


class World:
    """A data directory with a CA, and a store."""

    def __init__(self, directory: DataDirectory) -> None:
        self.clock = ManualClock()
        self.directory = directory
        self.store = MemoryStore(self.clock)
        self.issuer = LocalIssuer.open(directory.path, LIFETIMES, self.clock.now())

    def cluster(self, https: str = "127.0.0.1") -> ClusterEntry:
        at = At(Address("127.0.0.1", 8443), Address(https, 6443), (), ())
        return entry(HUB, at, self.issuer.trust_bundle)

    async def keep(self, cluster: ClusterEntry | None = None) -> bytes:
        path = await keep_admin_kubeconfig(
            self.directory,
            self.store,
            self.issuer,
            cluster or self.cluster(),
            lifetimes=LIFETIMES,
            now=self.clock.now(),
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
    record = world.store.transact(certificates.resolve, pki.parse_certificate(chain(world)).serial)
    assert record is not None
    assert (record.purpose, record.groups) == (Purpose.OPERATOR, (OPERATOR_GROUP,))


async def test_it_stays_as_it_is_while_everything_in_it_is_right(world: World) -> None:
    assert await world.keep() == await world.keep()


async def test_a_new_address_is_written_with_the_same_certificate(world: World) -> None:
    before = await world.keep()
    kept = chain(world)
    after = await world.keep(world.cluster("hub.example.org"))
    assert after != before
    assert b"https://hub.example.org:6443" in after
    assert chain(world) == kept


async def test_a_certificate_near_its_end_is_replaced(world: World) -> None:
    await world.keep()
    kept = chain(world)
    world.clock.advance(LIFETIMES.operator * 0.6)
    await world.keep()
    assert chain(world) == kept
    world.clock.advance(LIFETIMES.operator * 0.2)
    await world.keep()
    assert chain(world) != kept


@pytest.mark.parametrize("content", [b"", b"not: [yaml", b"apiVersion: v1\nkind: Config\n"])
async def test_a_file_that_cannot_be_read_is_written_again(world: World, content: bytes) -> None:
    world.directory.write(ADMIN_FILE, content)
    await world.keep()
    assert chain(world)


async def test_a_certificate_of_another_ca_is_replaced(world: World, tmp_path: Path) -> None:
    await world.keep()
    kept = chain(world)
    other = tmp_path / "other"
    other.mkdir()
    world.issuer = LocalIssuer.open(other, LIFETIMES, world.clock.now())
    await world.keep()
    assert chain(world) != kept


def test_the_hubs_id_is_made_once(world: World) -> None:
    first = world.store.transact(settle)
    assert world.store.transact(settle) == first


def test_a_database_of_a_hub_with_other_groups_is_refused(world: World) -> None:
    world.store.transact(lambda tx: tx.facts.set(SUFFIX, "example.org"))
    with pytest.raises(InvalidError, match=r'API groups end in "example\.org"'):
        world.store.transact(settle)


def test_the_suffix_of_the_first_start_stays(world: World) -> None:
    first = world.store.transact(settle, "example.org")
    assert world.store.transact(settle, "example.org") == first
    with pytest.raises(InvalidError, match="start it with --api-group-suffix as then"):
        world.store.transact(settle)
