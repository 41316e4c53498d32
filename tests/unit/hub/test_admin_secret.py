"""The Secret with the administrator's kubeconfig: right once a replica looked at it, and left alone while it is."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from hub.adminsecret import KUBECONFIG, LOOK_EVERY, TRUST, AdminSecret
from hub.domain.certificate import Lifetimes
from hub.fields import Address
from hub.installation import Addresses, AdminKubeconfig, entry
from hub.issuer import LocalIssuer
from hub.ports import KeySecret
from hub.settings import SettingsError, load
from machinery.clock import ManualClock
from machinery.directory import DataDirectory
from machinery.errors import ForbiddenError
from machinery.identity import HubId
from machinery.kubeconfig import parse_kubeconfig
from tests.fakes.memory_store import MemoryStore

HUB = HubId("0d6c4a04-2f7c-4c5e-9d1c-0b6a4e6f2a11")
LIFETIMES = Lifetimes()


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
        self.store = MemoryStore(self.clock)
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


@pytest.mark.parametrize("spoilt", [{KUBECONFIG: b""}, {KUBECONFIG: b"apiVersion: v1\n"}, {TRUST: b"another"}])
async def test_what_somebody_spoilt_is_put_right(hub: Hub, spoilt: Mapping[str, bytes]) -> None:
    with hub.replica("one") as one:
        await one.look()
        hub.secret.held |= spoilt
        assert await one.look()
        assert not await one.look()


async def test_another_address_is_written(hub: Hub) -> None:
    with hub.replica("one") as one:
        await one.look()
    with hub.replica("one", host="other.example.com") as one:
        assert await one.look()
    assert b"https://other.example.com:6443" in hub.secret.held[KUBECONFIG]


async def test_it_is_written_anew_before_its_certificate_ends(hub: Hub) -> None:
    with hub.replica("one") as one:
        await one.look()
        before = hub.secret.held[KUBECONFIG]
        hub.clock.advance(LIFETIMES.operator * 2 / 3 + timedelta(hours=1))
        assert await one.look()
    assert hub.secret.held[KUBECONFIG] != before


async def test_a_right_that_is_missing_ends_nothing_and_is_looked_at_again_soon(hub: Hub) -> None:
    with hub.replica("one") as one:
        hub.secret.refused = True
        assert await one._look() < timedelta(seconds=10)
        hub.secret.refused = False
        assert await one._look() == LOOK_EVERY
    assert hub.secret.held


@pytest.mark.parametrize("wrong", ["admin", "/admin", "fleet/", "Fleet/admin", "a/b/c"])
def test_the_setting_names_a_secret(wrong: str) -> None:
    with pytest.raises(SettingsError, match=r"admin_kubeconfig_secret: .*NAMESPACE/NAME"):
        load({"admin_kubeconfig_secret": wrong}, None, {})
