"""The list of hubs: files and secrets, in order, watched; what is wrong with one source never costs another."""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from machinery.clock import ManualClock
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import HubId
from spoke.bootstraps import BootstrapFile, Bootstraps, BootstrapSecret, BootstrapWatch, MissingBootstrapError
from spoke.domain.reach import Driver
from spoke.hubapi.door import ApiDoor
from spoke.ports import SecretSnapshot
from tests.fakes.credentials import MemorySecrets
from tests.fakes.hub import MemoryHub
from tests.fakes.stage import until

A, B, C = (HubId(f"{letter * 8}-0000-4000-8000-000000000001") for letter in "abc")


def kubeconfig(hub: HubId) -> bytes:
    return MemoryHub(ManualClock(), hub_id=hub).bootstrap_kubeconfig()


def files(folder: Path, *hubs: HubId) -> tuple[Path, ...]:
    paths = tuple(folder / f"hub-{number}.kubeconfig" for number in range(len(hubs)))
    for path, hub in zip(paths, hubs, strict=True):
        path.write_bytes(kubeconfig(hub))
    return paths


def listed(bootstraps: Bootstraps) -> list[HubId]:
    return [hub.hub_id for hub in bootstraps.look().hubs]


@pytest.fixture
def secrets() -> MemorySecrets:
    return MemorySecrets()


async def loaded(secrets: MemorySecrets) -> BootstrapSecret:
    source = BootstrapSecret(secrets, "s")
    await source.load()
    return source


async def put(secrets: MemorySecrets, name: str, **contents: bytes) -> None:
    present = await secrets.read(name)
    await secrets.write(name, {key.replace("_", "."): value for key, value in contents.items()}, present.version)


async def test_hubs_are_listed_in_the_order_they_were_given_files_and_secrets(tmp_path: Path) -> None:
    secrets = MemorySecrets()
    await put(secrets, "third", kubeconfig=kubeconfig(C))
    bootstraps = Bootstraps([*map(BootstrapFile, files(tmp_path, B, A)), BootstrapSecret(secrets, "third")])
    await bootstraps.load()
    assert [(hub.hub_id, hub.name) for hub in bootstraps.look().hubs] == [(B, "hub-0"), (A, "hub-1"), (C, "third")]


def test_mounted_secrets_are_called_after_their_folders_and_two_of_one_name_after_their_paths(tmp_path: Path) -> None:
    places = [tmp_path / "east" / "kubeconfig", tmp_path / "x" / "hub.yaml", tmp_path / "y" / "hub.yaml"]
    for place, hub in zip(places, (A, B, C), strict=True):
        place.parent.mkdir()
        place.write_bytes(kubeconfig(hub))
    names = [hub.name for hub in Bootstraps([BootstrapFile(place) for place in places]).look().hubs]
    assert names == ["east", str(places[1]), str(places[2])]


def test_the_first_of_two_sources_for_one_hub_wins_and_that_is_said_once(tmp_path: Path) -> None:
    first, second = files(tmp_path, A, A)
    bootstraps = Bootstraps([BootstrapFile(first), BootstrapFile(second)])
    with capture_logs() as logs:
        for _ in range(3):
            assert [hub.source for hub in bootstraps.look().hubs] == [str(first)]
    assert [entry["source"] for entry in logs] == [str(second)]
    assert "the same hub" in logs[0]["error"]


def test_a_garbled_source_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    first, second = files(tmp_path, A, B)
    first.write_bytes(b"nonsense: [")
    listing = Bootstraps([BootstrapFile(first), BootstrapFile(second)]).look()
    assert [hub.hub_id for hub in listing.hubs] == [B]
    assert str(first) in str(listing.trouble)
    assert not listing.whole, "what the first one names is not known: nobody is off the list for certain"


def test_file_keeps_its_hub_on_the_list_while_it_is_written_and_takes_it_off_when_it_is_gone(tmp_path: Path) -> None:
    first, second = files(tmp_path, A, B)
    bootstraps = Bootstraps([BootstrapFile(first), BootstrapFile(second)])
    assert listed(bootstraps) == [A, B]
    first.write_bytes(b"")
    assert listed(bootstraps) == [A, B]
    assert bootstraps.look().whole
    first.write_bytes(kubeconfig(C))
    assert listed(bootstraps) == [C, B]
    first.unlink()
    assert listed(bootstraps) == [B]
    assert bootstraps.look().whole


def test_with_no_hub_at_all_every_source_is_named(tmp_path: Path) -> None:
    first, second = files(tmp_path, A, B)
    first.unlink()
    second.write_bytes(b"nonsense: [")
    with pytest.raises(InvalidError, match=r"hub-0.*cannot be read.*hubctl create.*hub-1.*is not YAML"):
        Bootstraps([BootstrapFile(first), BootstrapFile(second)]).first()


async def test_secret_may_name_further_keys_as_files(secrets: MemorySecrets) -> None:
    """The shape of Open Cluster Management's bootstrap secret."""
    document = yaml.safe_load(kubeconfig(A))
    inline = MemoryHub(ManualClock(), hub_id=A).credential()
    document["users"][0]["user"] = {"client-certificate": "tls.crt", "client-key": "tls.key"}
    await put(secrets, "s", kubeconfig=yaml.safe_dump(document).encode(), tls_crt=inline.chain, tls_key=inline.key)
    assert (await loaded(secrets)).read().identity.key == inline.key
    document["clusters"][0]["cluster"].pop("extensions")
    document["users"][0]["user"] = {"tokenFile": "token"}
    await put(secrets, "s", kubeconfig=yaml.safe_dump(document).encode(), token=b"opaque\n")
    token = (await loaded(secrets)).read().identity.token
    assert token is not None
    assert token.text == "opaque"


@pytest.mark.parametrize("driver", list(Driver))
@pytest.mark.parametrize("token", [{}, {"token": "opaque"}])
async def test_an_agent_runs_no_command_of_a_bootstrap_kubeconfig(
    tmp_path: Path, driver: Driver, token: dict[str, str]
) -> None:
    """Neither of a file nor of a secret, which others may write: a plug-in is for people's kubeconfigs."""
    ran = tmp_path / "ran"
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "touch",
        "args": [str(ran)],
        "interactiveMode": "Never",
    }
    document = yaml.safe_load(kubeconfig(A))
    document["users"][0]["user"] = {"exec": plugin, **token}
    if driver is Driver.CSR:
        document["clusters"][0]["cluster"].pop("extensions")
    (tmp_path / "hub.kubeconfig").write_text(yaml.safe_dump(document))
    secrets = MemorySecrets()
    await put(secrets, "s", kubeconfig=yaml.safe_dump(document).encode())
    sources = BootstrapFile(tmp_path / "hub.kubeconfig"), BootstrapSecret(secrets, "s")
    for source in sources:
        await source.load()
        if driver is Driver.CSR and token:
            connection = source.read()
            assert b"exec" not in connection.kubeconfig
            door = ApiDoor(connection.address, connection.identity, ManualClock())
            await door.kube()
            await door.close()
        else:
            with pytest.raises(InvalidError, match="lacks client-certificate-data"):
                source.read()
    assert not ran.exists()


async def test_unusable_secret_is_reported_and_one_that_cannot_be_read_is_not_gone(secrets: MemorySecrets) -> None:
    class Away(MemorySecrets):
        async def read(self, name: str) -> SecretSnapshot:
            raise UnavailableError(f"no answer about {name}")

    with pytest.raises(MissingBootstrapError, match="there is no secret"):
        (await loaded(secrets)).read()
    await put(secrets, "s", other=b"x")
    with pytest.raises(InvalidError, match="has no key kubeconfig"):
        (await loaded(secrets)).read()
    await put(secrets, "s", kubeconfig=b"nonsense: [")
    with pytest.raises(InvalidError, match="in secret s is not YAML"):
        (await loaded(secrets)).read()
    bootstraps = Bootstraps([BootstrapSecret(Away(), "s")])
    await bootstraps.load()
    listing = bootstraps.look()
    assert not listing.whole
    assert "no answer" in str(listing.trouble)


async def test_a_secret_is_followed_while_it_is_added_replaced_and_removed(secrets: MemorySecrets) -> None:
    await put(secrets, "one", kubeconfig=kubeconfig(A))
    watch = BootstrapWatch(Bootstraps([BootstrapSecret(secrets, "one"), BootstrapSecret(secrets, "two")]))

    def hubs() -> list[HubId]:
        return [hub.hub_id for hub in watch.settle().hubs]

    async with watch.watching():
        assert hubs() == [A]
        await put(secrets, "two", kubeconfig=kubeconfig(B))
        await until(lambda: watch.changed)
        assert hubs() == [A, B]
        await put(secrets, "one", kubeconfig=kubeconfig(C))
        await until(lambda: watch.changed)
        assert hubs() == [C, B]
        await secrets.delete("one")
        await until(lambda: watch.changed)
        assert hubs() == [B]
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("bootstrap")]


async def test_labels_of_a_secret_change_nothing() -> None:
    """Whoever touches the object wakes nobody: only its content counts."""
    secrets = MemorySecrets()
    await put(secrets, "one", kubeconfig=kubeconfig(A))

    class Relabelled(MemorySecrets):
        async def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
            snapshot = await secrets.read(name)
            for version in ("1", "2", "3"):
                yield SecretSnapshot(snapshot.contents, version)
            told.set()
            await asyncio.Event().wait()

        async def read(self, name: str) -> SecretSnapshot:
            return await secrets.read(name)

    told = asyncio.Event()
    watch = BootstrapWatch(Bootstraps([BootstrapSecret(Relabelled(), "one")]))
    async with watch.watching():
        watch.settle()
        await told.wait()
        assert not watch.changed


async def test_work_that_fails_in_the_moment_in_which_its_agent_is_ended_leaves_no_stray_error(tmp_path: Path) -> None:
    stray: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: stray.append(context))
    watch, go = BootstrapWatch(Bootstraps([*map(BootstrapFile, files(tmp_path, A))])), asyncio.Event()

    async def fails() -> None:
        await go.wait()
        raise InvalidError("refused")

    working = asyncio.create_task(watch.unless_changed(fails()))
    await asyncio.sleep(1)
    go.set()
    await asyncio.sleep(0)
    working.cancel()
    await asyncio.wait([working])
    assert working.cancelled()
    del working
    gc.collect()
    assert stray == []
