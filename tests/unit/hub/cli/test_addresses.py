"""Which addresses may stand in a file for another machine."""

import pytest

from hub.cli.addresses import split_host, unreachable
from hub.cli.creating import Endpoints, check_endpoints
from hub.cli.failures import CommandError


@pytest.mark.parametrize(
    ("host", "word"),
    [
        ("127.0.0.1", "loopback"),
        ("127.8.9.10", "loopback"),
        ("127.1", "loopback"),
        ("2130706433", "loopback"),
        ("0x7f000001", "loopback"),
        ("::1", "loopback"),
        ("[::1]", "loopback"),
        ("::ffff:127.0.0.1", "loopback"),
        ("localhost", "loopback"),
        ("LocalHost.", "loopback"),
        ("hub.localhost", "loopback"),
        ("0.0.0.0", "unspecified"),  # noqa: S104 - nothing is bound
        ("0", "unspecified"),
        ("::", "unspecified"),
        ("169.254.10.1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("224.0.0.1", "multicast"),
        ("10.244.3.7", "pod network"),
        ("10.42.0.9", "pod network"),
        ("hub.muster.svc", "inside one Kubernetes cluster"),
        ("hub.muster.svc.cluster.local", "inside one Kubernetes cluster"),
    ],
)
def test_an_address_that_leads_elsewhere_on_another_machine_is_told(host: str, word: str) -> None:
    assert word in (unreachable(host) or "")


@pytest.mark.parametrize(
    "host", ["hub.example.org", "192.168.1.20", "10.0.0.5", "203.0.113.9", "2001:db8::5", "localhost.example.org"]
)
def test_an_address_that_others_may_reach_is_left_alone(host: str) -> None:
    assert unreachable(host) is None


@pytest.mark.parametrize(
    ("address", "parts"),
    [("hub:8443", ("hub", 8443)), ("[::1]:8443", ("::1", 8443)), ("hub", ("hub", None)), ("[::1]", ("::1", None))],
)
def test_host_and_port_are_read(address: str, parts: tuple[str, int | None]) -> None:
    assert split_host(address) == parts


@pytest.mark.parametrize("address", ["", "hub:0", "hub:65536", "hub:x", "a b:1", "https://hub:1", "me@hub:1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_host(address)


@pytest.mark.parametrize(
    ("endpoints", "words"),
    [
        (Endpoints("https://127.0.0.1:6443", "hub:8443"), ("https_advertised", "--https-advertised", "--server")),
        (Endpoints("https://hub:6443", "[::]:8443"), ("grpc_advertised", "--grpc-advertised", "--grpc-server")),
    ],
)
def test_a_refusal_names_the_setting_and_the_flags(endpoints: Endpoints, words: tuple[str, ...]) -> None:
    with pytest.raises(CommandError) as refused:
        check_endpoints(endpoints)
    assert all(word in refused.value.sentence for word in (*words, "--allow-loopback"))


def test_good_endpoints_pass_and_absent_ones_are_not_judged() -> None:
    check_endpoints(Endpoints("https://hub.example.org:6443", "hub.example.org:8443"))
    check_endpoints(Endpoints("", ""))
