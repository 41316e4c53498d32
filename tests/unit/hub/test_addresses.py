"""Where the doors are, as kubeconfigs and the serving certificate say it."""

from typing import Any

import pytest

from hub.installation import Addresses
from hub.settings import load

EVERYWHERE = "0.0.0.0"  # noqa: S104 - what the test is about


def addresses(**flags: Any) -> Addresses:
    return Addresses.of(load(flags, None, {}))


def test_without_settings_the_doors_are_on_loopback() -> None:
    found = addresses()
    assert (str(found.grpc), str(found.https)) == ("127.0.0.1:8443", "127.0.0.1:6443")
    assert found.dns_names == ("localhost",)
    assert found.ip_addresses == ("127.0.0.1", "::1")


def test_an_advertised_host_takes_the_port_that_is_listened_on() -> None:
    found = addresses(
        grpc_listen=f"{EVERYWHERE}:9443", grpc_advertised="hub.example.org", https_advertised="api.example.org:443"
    )
    assert (str(found.grpc), str(found.https)) == ("hub.example.org:9443", "api.example.org:443")
    assert found.dns_names == ("api.example.org", "hub.example.org", "localhost")


@pytest.mark.parametrize(("listen", "seen"), [(f"{EVERYWHERE}:8443", "127.0.0.1:8443"), ("[::]:8443", "[::1]:8443")])
def test_a_door_that_listens_everywhere_is_never_told_as_everywhere(listen: str, seen: str) -> None:
    found = addresses(grpc_listen=listen)
    assert str(found.grpc) == seen
    assert EVERYWHERE not in found.ip_addresses
    assert "::" not in found.ip_addresses


def test_more_serving_names_are_sorted_into_names_and_addresses() -> None:
    found = addresses(serving_names=("hub.internal", "10.0.0.7"))
    assert "hub.internal" in found.dns_names
    assert "10.0.0.7" in found.ip_addresses
