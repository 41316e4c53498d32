"""Which driver, and through which proxy: the rules as tables."""

from dataclasses import dataclass, field, replace

import pytest

from machinery.clock import ManualClock
from machinery.errors import InvalidError
from machinery.identity import HubId
from machinery.kubeconfig import ClusterEntry, HubEndpoint, Kubeconfig
from spoke.domain.reach import Driver, Reach, over_grpc, shown_proxy
from spoke.kubeconfigs import connection_of
from tests.checks import refusal_text
from tests.fakes.hub import MemoryHub

SERVER = "https://hub.example.org:6443"


BOTH = {"endpoint": True, "certificate": True}
NEITHER = {"endpoint": False, "certificate": False}


def test_extension_chooses_the_driver_and_the_option_overrides_it() -> None:
    drivers: list[tuple[str, dict[str, bool], Driver]] = [
        ("auto", BOTH, Driver.GRPC),
        ("auto", {**BOTH, "endpoint": False}, Driver.CSR),
        ("auto", NEITHER, Driver.CSR),
        ("csr", BOTH, Driver.CSR),
        ("csr", {**BOTH, "certificate": False}, Driver.CSR),
        ("grpc", BOTH, Driver.GRPC),
    ]
    assert [row for row in drivers if Reach(row[0]).driver_for(source="FILE", **row[1]) is not row[2]] == []
    refused: list[tuple[str, dict[str, bool], str]] = [
        ("grpc", {**BOTH, "endpoint": False}, "leave the driver on auto"),
        ("grpc", {**BOTH, "certificate": False}, "client-certificate-data"),
        ("auto", {**BOTH, "certificate": False}, "--registration-driver=csr"),
    ]
    for asked, has, told in refused:
        said = refusal_text(Reach(asked).driver_for, source="FILE", **has)
        assert said.startswith("InvalidError")
        assert told in said
        assert "kubeconfig FILE" in said


@dataclass(frozen=True)
class Way:
    expected: str
    option: str = ""
    named: str = ""
    server: str = SERVER
    environment: dict[str, str] = field(default_factory=dict)


PROXY = {"HTTPS_PROXY": "http://env:3128"}
WAYS = [
    Way(""),
    Way("http://env:3128", environment=PROXY),
    Way("http://env:3128", environment={"https_proxy": "env:3128"}),
    Way("http://named:1", named="http://named:1", environment=PROXY),
    Way("http://option:1", option="http://option:1", named="http://named:1", environment=PROXY),
    Way("", environment={**PROXY, "NO_PROXY": "example.org"}),
    Way("", environment={**PROXY, "NO_PROXY": "other.org, .example.org"}),
    Way("http://env:3128", environment={**PROXY, "NO_PROXY": "ample.org"}),
    Way("http://env:3128", environment={**PROXY, "NO_PROXY": ".hub.example.org"}),
    Way("", environment={**PROXY, "no_proxy": "*"}),
    Way("", environment={**PROXY, "NO_PROXY": "hub.example.org:6443"}),
    Way("http://env:3128", environment={**PROXY, "NO_PROXY": "hub.example.org:8443"}),
    Way("", server="10.1.2.3:8443", environment={**PROXY, "NO_PROXY": "10.1.0.0/16"}),
    Way("http://env:3128", server="10.2.2.3:8443", environment={**PROXY, "NO_PROXY": "10.1.0.0/16"}),
    Way("", server="127.0.0.1:8443", environment=PROXY),
    Way("", server="[::1]:8443", environment=PROXY),
    Way("http://named:1", server="127.0.0.1:8443", named="http://named:1", environment={"NO_PROXY": "*"}),
]


def test_proxy_is_the_options_the_kubeconfigs_or_the_environments() -> None:
    found = [(way, Reach(proxy_url=way.option, environment=way.environment)) for way in WAYS]
    assert [way for way, reach in found if reach.proxy_for(way.server, named=way.named) != way.expected] == []


def test_unusable_proxy_is_refused_and_its_password_is_never_shown() -> None:
    for url in ("socks5://user:hush@host:1", "http://", "nonsense-hush", "http://host:hush", "http://host:0"):
        said = refusal_text(Reach(proxy_url=url).proxy_for, SERVER, named="")
        assert said.startswith("InvalidError"), url
        assert "the proxy's URL" in said, url
        assert "hush" not in said
    with pytest.raises(InvalidError, match=r"https://proxy:3129.*registration-driver=csr") as refused:
        over_grpc("https://user:hush@proxy:3129")
    assert "hush" not in refused.value.message
    assert "user" not in shown_proxy("http://user:hush@proxy:3129")
    assert "hush" not in repr(Reach(proxy_url="http://user:hush@proxy:3129", environment={"HTTPS_PROXY": "http://u:hush@p:1"}))


def kubeconfig(proxy: str | None = None) -> Kubeconfig:
    hub = MemoryHub(ManualClock())
    endpoint = HubEndpoint("hub.example.org:8443", HubId("id"), cluster_name="c1", group_suffix="example.org")
    entry = ClusterEntry("muster", SERVER, hub.authority.certificate, endpoint, proxy, "other.example.org")
    return Kubeconfig("FILE", "muster", entry, "agent", hub.credential())


def test_one_kubeconfig_is_dialled_as_either_driver_has_it() -> None:
    over = {driver: connection_of(kubeconfig("http://p:1"), Reach(driver)).address for driver in ("grpc", "csr")}
    assert (over["grpc"].target, over["grpc"].proxy) == ("hub.example.org:8443", "http://p:1")
    assert (over["csr"].target, over["csr"].proxy, over["csr"].driver) == (SERVER, "http://p:1", Driver.CSR)
    assert (over["csr"].tls_server_name, over["csr"].group_suffix) == ("other.example.org", "example.org")


def test_a_kubeconfig_whose_proxy_gRPC_cannot_use_is_named_and_the_other_driver_takes_it() -> None:  # noqa: N802 - its name
    with pytest.raises(InvalidError, match=r"kubeconfig FILE: gRPC cannot go through https://p:1"):
        connection_of(kubeconfig("https://user:hush@p:1"))
    assert connection_of(kubeconfig("https://user:hush@p:1"), Reach("csr")).address.proxy == "https://user:hush@p:1"
    assert "hush" not in repr(connection_of(kubeconfig("http://user:hush@p:1")))


def test_a_hub_that_tells_no_id_is_known_by_its_server_and_its_entry() -> None:
    plain = replace(kubeconfig().cluster, endpoint=None)
    ids = [
        connection_of(replace(kubeconfig(), cluster=cluster)).hub_id
        for cluster in (plain, plain, replace(plain, server="https://other:6443"), replace(plain, name="rebuilt"))
    ]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert connection_of(kubeconfig()).hub_id == "id"
