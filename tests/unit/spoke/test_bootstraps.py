"""The list of hubs: files and secrets, in order, watched; which driver and which proxy lead to each."""

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import yaml
from structlog.testing import capture_logs

from machinery.client.kubeconfig import ClusterEntry, HubEndpoint, Kubeconfig
from machinery.client.proxy import shown_proxy
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import HubId
from machinery.runtime.clock import ManualClock
from spoke.bootstraps.listing import BootstrapFile, Bootstraps, BootstrapSecret, MissingBootstrapError
from spoke.bootstraps.watch import BootstrapWatch
from spoke.credentials.kubeconfigs import connection_of
from spoke.domain.route import Driver, Reach, over_grpc
from spoke.ports.cluster import SecretSnapshot
from spoke.transports.kubernetes.api import ApiDoor
from tests.checks import check_refusal, present, refusal_text
from tests.fakes.credentials import MemorySecrets
from tests.fakes.hub import MemoryHub
from tests.fakes.stage import until

A, B, C = (HubId(f"{letter * 8}-0000-4000-8000-000000000001") for letter in "abc")
SERVER = "https://hub.example.org:6443"
BOTH = {"endpoint": True, "certificate": True}


def kubeconfig(hub: HubId) -> bytes:
    return MemoryHub(ManualClock(), hub_id=hub).bootstrap_kubeconfig()


def files(folder: Path, *hubs: HubId) -> tuple[Path, ...]:
    paths = tuple(folder / f"hub-{number}.kubeconfig" for number in range(len(hubs)))
    for path, hub in zip(paths, hubs, strict=True):
        path.write_bytes(kubeconfig(hub))
    return paths


def listed(bootstraps: Bootstraps) -> list[HubId]:
    return [hub.hub_id for hub in bootstraps.read().hubs]


async def loaded(secrets: MemorySecrets) -> BootstrapSecret:
    source = BootstrapSecret(secrets, "s")
    await source.load()
    return source


async def put(secrets: MemorySecrets, name: str, **contents: bytes) -> None:
    present = await secrets.read(name)
    await secrets.write(name, {key.replace("_", "."): value for key, value in contents.items()}, present.version)


async def test_hubs_are_listed_in_the_order_they_were_given_files_and_secrets(tmp_path: Path, secrets: MemorySecrets) -> None:
    await put(secrets, "third", kubeconfig=kubeconfig(C))
    bootstraps = Bootstraps([*map(BootstrapFile, files(tmp_path, B, A)), BootstrapSecret(secrets, "third")])
    await bootstraps.load()
    assert [(hub.hub_id, hub.name) for hub in bootstraps.read().hubs] == [(B, "hub-0"), (A, "hub-1"), (C, "third")]


def test_mounted_secrets_are_called_after_their_folders_and_two_of_one_name_after_their_paths(tmp_path: Path) -> None:
    places = [tmp_path / "east" / "kubeconfig", tmp_path / "x" / "hub.yaml", tmp_path / "y" / "hub.yaml"]
    for place, hub in zip(places, (A, B, C), strict=True):
        place.parent.mkdir()
        place.write_bytes(kubeconfig(hub))
    names = [hub.name for hub in Bootstraps([BootstrapFile(place) for place in places]).read().hubs]
    assert names == ["east", str(places[1]), str(places[2])]


def test_the_first_of_two_sources_for_one_hub_wins_and_that_is_said_once(tmp_path: Path) -> None:
    first, second = files(tmp_path, A, A)
    bootstraps = Bootstraps([BootstrapFile(first), BootstrapFile(second)])
    with capture_logs() as logs:
        for _ in range(3):
            assert [hub.source for hub in bootstraps.read().hubs] == [str(first)]
    assert [entry["source"] for entry in logs] == [str(second)]
    assert "the same hub" in logs[0]["error"]


def test_a_garbled_source_is_named_and_the_others_go_on_and_with_no_hub_at_all_every_source_is_named(tmp_path: Path) -> None:
    first, second = files(tmp_path, A, B)
    first.write_bytes(b"nonsense: [")
    bootstraps = Bootstraps([BootstrapFile(first), BootstrapFile(second)])
    listing = bootstraps.read()
    assert [hub.hub_id for hub in listing.hubs] == [B]
    assert str(first) in str(listing.error)
    assert not listing.whole, "what the first one names is not known: nobody is off the list for certain"
    second.unlink()
    check_refusal(InvalidError, bootstraps.first, match=r"hub-0.*is not YAML.*hub-1.*cannot be read.*hubctl create")


def test_file_keeps_its_hub_on_the_list_while_it_is_written_and_takes_it_off_when_it_is_gone(tmp_path: Path) -> None:
    first, second = files(tmp_path, A, B)
    bootstraps = Bootstraps([BootstrapFile(first), BootstrapFile(second)])
    assert listed(bootstraps) == [A, B]
    first.write_bytes(b"")
    assert listed(bootstraps) == [A, B]
    assert bootstraps.read().whole
    first.write_bytes(kubeconfig(C))
    assert listed(bootstraps) == [C, B]
    first.unlink()
    assert listed(bootstraps) == [B]
    assert bootstraps.read().whole


async def test_secret_may_name_further_keys_as_files(secrets: MemorySecrets) -> None:
    """The shape of Open Cluster Management's bootstrap secret."""
    document, inline = yaml.safe_load(kubeconfig(A)), MemoryHub(ManualClock(), hub_id=A).credential()
    document["users"][0]["user"] = {"client-certificate": "tls.crt", "client-key": "tls.key"}
    await put(secrets, "s", kubeconfig=yaml.safe_dump(document).encode(), tls_crt=inline.chain, tls_key=inline.key)
    assert (await loaded(secrets)).read().identity.key == inline.key
    document["clusters"][0]["cluster"].pop("extensions")
    document["users"][0]["user"] = {"tokenFile": "token"}
    await put(secrets, "s", kubeconfig=yaml.safe_dump(document).encode(), token=b"opaque\n")
    assert present((await loaded(secrets)).read().identity.token).text == "opaque"


@pytest.mark.parametrize("driver", list(Driver))
@pytest.mark.parametrize("token", [{}, {"token": "opaque"}])
async def test_no_command_of_a_bootstrap_kubeconfig_is_run(tmp_path: Path, driver: Driver, token: dict[str, str]) -> None:
    """Neither of a file nor of a secret, which others may write: a plug-in is for people's kubeconfigs."""
    ran, version = tmp_path / "ran", "client.authentication.k8s.io/v1"
    plugin = {"apiVersion": version, "command": "touch", "args": [str(ran)], "interactiveMode": "Never"}
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
            check_refusal(InvalidError, source.read, match="lacks client-certificate-data")
    assert not ran.exists()


async def test_unusable_secret_is_reported_and_one_that_cannot_be_read_is_not_gone(secrets: MemorySecrets) -> None:
    class Away(MemorySecrets):
        async def read(self, name: str) -> SecretSnapshot:
            raise UnavailableError(f"no answer about {name}")

    check_refusal(MissingBootstrapError, (await loaded(secrets)).read, match="there is no secret")
    for key, content, text in (("other", b"x", "has no key kubeconfig"), ("kubeconfig", b"a: [", "in secret s is not YAML")):
        await put(secrets, "s", **{key: content})
        check_refusal(InvalidError, (await loaded(secrets)).read, match=text)
    bootstraps = Bootstraps([BootstrapSecret(Away(), "s")])
    await bootstraps.load()
    listing = bootstraps.read()
    assert not listing.whole
    assert "no answer" in str(listing.error)


async def test_a_secret_is_followed_while_it_is_added_replaced_and_removed(secrets: MemorySecrets) -> None:
    await put(secrets, "one", kubeconfig=kubeconfig(A))
    watch = BootstrapWatch(Bootstraps([BootstrapSecret(secrets, "one"), BootstrapSecret(secrets, "two")]))

    def hubs() -> list[HubId]:
        return [hub.hub_id for hub in watch.read().hubs]

    async with watch.watching():
        assert hubs() == [A]
        for name, hub, expected in (("two", B, [A, B]), ("one", C, [C, B])):
            await put(secrets, name, kubeconfig=kubeconfig(hub))
            await until(lambda: watch.changed)
            assert hubs() == expected
        await secrets.delete("one")
        await until(lambda: watch.changed)
        assert hubs() == [B]
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("bootstrap")]


async def test_labels_of_a_secret_change_nothing(secrets: MemorySecrets) -> None:
    """A write without a change of the content wakes no task."""
    await put(secrets, "one", kubeconfig=kubeconfig(A))

    class Relabelled(MemorySecrets):
        async def changes(self, name: str) -> AsyncIterator[SecretSnapshot]:
            snapshot = await secrets.read(name)
            for version in ("1", "2", "3"):
                yield SecretSnapshot(snapshot.contents, version)
            changed.set()
            await asyncio.Event().wait()

        async def read(self, name: str) -> SecretSnapshot:
            return await secrets.read(name)

    changed, watch = asyncio.Event(), BootstrapWatch(Bootstraps([BootstrapSecret(Relabelled(), "one")]))
    async with watch.watching():
        watch.read()
        await changed.wait()
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


def test_extension_chooses_the_driver_and_the_option_overrides_it() -> None:
    drivers: list[tuple[str, dict[str, bool], Driver]] = [
        *(("auto", BOTH, Driver.GRPC), ("auto", {**BOTH, "endpoint": False}, Driver.CSR)),
        *(("auto", {"endpoint": False, "certificate": False}, Driver.CSR), ("csr", BOTH, Driver.CSR)),
        *(("csr", {**BOTH, "certificate": False}, Driver.CSR), ("grpc", BOTH, Driver.GRPC)),
    ]
    assert [row for row in drivers if Reach(row[0]).driver_for(source="FILE", **row[1]) is not row[2]] == []
    refused: list[tuple[str, dict[str, bool], str]] = [
        ("grpc", {**BOTH, "endpoint": False}, "leave the driver on auto"),
        ("grpc", {**BOTH, "certificate": False}, "client-certificate-data"),
        ("auto", {**BOTH, "certificate": False}, "--registration-driver=csr"),
    ]
    for asked, has, message in refused:
        text = refusal_text(Reach(asked).driver_for, source="FILE", **has)
        assert text.startswith("InvalidError")
        assert message in text
        assert "kubeconfig FILE" in text


def test_proxy_is_the_options_the_kubeconfigs_or_the_environments() -> None:
    env, named, option = "http://env:3128", "http://named:1", "http://option:1"
    assert Reach().proxy_for(SERVER, named="") == ""
    assert Reach(environment={"https_proxy": "env:3128"}).proxy_for(SERVER, named="") == env
    assert Reach(environment={"HTTPS_PROXY": env}).proxy_for(SERVER, named=named) == named
    assert Reach(proxy_url=option, environment={"HTTPS_PROXY": env}).proxy_for(SERVER, named=named) == option
    assert Reach(environment={"NO_PROXY": "*"}).proxy_for("127.0.0.1:8443", named=named) == named
    rows = [
        (SERVER, "", env),
        *((SERVER, excepted, "") for excepted in ("EXAMPLE.org", "other.org, .example.org", "*", "hub.example.org:6443")),
        *(
            (SERVER, excepted, env)
            for excepted in ("ample.org", ".hub.example.org", "*.hub.example.org", "a*", "hub.example.org:8443")
        ),
        (SERVER, "other.org,*.example.org", ""),
        *(("10.1.2.3:8443", excepted, "") for excepted in ("10.1.0.0/16", "10.1.2.3", "10.1.2.3:8443")),
        *(("10.1.2.3:8443", excepted, env) for excepted in ("10.2.0.0/16", "10.1.2.3:443", "10.1.0.0/99", ",")),
        *(("[fd00::5]:8443", excepted, "") for excepted in ("fd00::/8", "fd00::5", "[fd00::5]", "[fd00::5]:8443")),
        ("[fd00::5]:8443", "[fd00::5]:1, fd00::6", env),
        *((server, "", "") for server in ("127.0.0.1:8443", "[::1]:8443", "https://127.9.9.9", "https://localhost:1")),
    ]
    for name, (server, excepted, expected) in product(("NO_PROXY", "no_proxy"), rows):
        reach = Reach(environment={"HTTPS_PROXY": env, name: excepted})
        assert reach.proxy_for(server, named="") == expected, (server, excepted)


def test_unusable_proxy_is_refused_and_its_password_is_never_shown() -> None:
    for url in ("socks5://user:hush@host:1", "http://", "nonsense-hush", "http://host:hush", "http://host:0"):
        text = refusal_text(Reach(proxy_url=url).proxy_for, SERVER, named="")
        assert text.startswith("InvalidError"), url
        assert "the proxy's URL" in text, url
        assert "hush" not in text
    with pytest.raises(InvalidError, match=r"https://proxy:3129.*registration-driver=csr") as refused:
        over_grpc("https://user:hush@proxy:3129")
    assert "hush" not in refused.value.message
    assert "user" not in shown_proxy("http://user:hush@proxy:3129")
    assert "hush" not in repr(Reach(proxy_url="http://user:hush@proxy:3129", environment={"HTTPS_PROXY": "http://u:hush@p:1"}))


def kubeconfig_with(proxy: str | None = None) -> Kubeconfig:
    hub = MemoryHub(ManualClock())
    endpoint = HubEndpoint("hub.example.org:8443", HubId("id"), cluster_name="c1", group_suffix="example.org")
    entry = ClusterEntry("muster", SERVER, hub.authority.certificate, endpoint, proxy, "other.example.org")
    return Kubeconfig("FILE", "muster", entry, "agent", hub.credential())


def test_one_kubeconfig_is_dialled_as_either_driver_has_it() -> None:
    over = {driver: connection_of(kubeconfig_with("http://p:1"), Reach(driver)).address for driver in ("grpc", "csr")}
    assert (over["grpc"].target, over["grpc"].proxy) == ("hub.example.org:8443", "http://p:1")
    assert (over["csr"].target, over["csr"].proxy, over["csr"].driver) == (SERVER, "http://p:1", Driver.CSR)
    assert (over["csr"].tls_server_name, over["csr"].group_suffix) == ("other.example.org", "example.org")


def test_a_kubeconfig_whose_proxy_gRPC_cannot_use_is_named_and_the_other_driver_takes_it() -> None:  # noqa: N802 - its name
    with pytest.raises(InvalidError, match=r"kubeconfig FILE: gRPC does not support https://p:1"):
        connection_of(kubeconfig_with("https://user:hush@p:1"))
    assert connection_of(kubeconfig_with("https://user:hush@p:1"), Reach("csr")).address.proxy == "https://user:hush@p:1"
    assert "hush" not in repr(connection_of(kubeconfig_with("http://user:hush@p:1")))


def test_a_hub_that_tells_no_id_is_known_by_its_server_and_its_entry() -> None:
    plain = replace(kubeconfig_with().cluster, endpoint=None)
    ids = [
        connection_of(replace(kubeconfig_with(), cluster=cluster)).hub_id
        for cluster in (plain, plain, replace(plain, server="https://other:6443"), replace(plain, name="rebuilt"))
    ]
    assert (ids[0], len(set(ids)), connection_of(kubeconfig_with()).hub_id) == (ids[1], 3, "id")
