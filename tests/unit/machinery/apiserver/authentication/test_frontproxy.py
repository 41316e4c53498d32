"""Behind a kube-apiserver: which proxy is believed, and what of it."""

from typing import Any

import pytest

from machinery.apiserver.authentication import Identity
from machinery.apiserver.authentication.frontproxy import FrontProxy, Origin, Trust
from machinery.apiserver.storage import Actor
from machinery.clock import SystemClock
from machinery.errors import InvalidError, UnauthorizedError
from tests.fakes.authority import OtherCA
from tests.fakes.shown import request

CA, OTHER = OtherCA("front-proxy-ca"), OtherCA("client-ca")
PROXY = CA.issue("front-proxy-client")
ANN = ("X-Remote-User", "ann")


def config_map(**entries: str) -> dict[str, Any]:
    """As kube-apiserver writes it."""
    return {
        "data": {
            "client-ca-file": OTHER.certificate.decode(),
            "requestheader-allowed-names": '["front-proxy-client"]',
            "requestheader-client-ca-file": CA.certificate.decode(),
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-uid-headers": '["X-Remote-Uid"]',
            "requestheader-username-headers": '["X-Remote-User"]',
            **entries,
        }
    }


def believing(**entries: str) -> FrontProxy:
    proxy = FrontProxy(SystemClock())
    proxy.believe(Trust.of_config_map(config_map(**entries)))
    return proxy


async def named(proxy: FrontProxy, *headers: tuple[str, str]) -> Identity:
    found = await proxy.identify(request(PROXY, *headers))
    assert found is not None
    return found


async def test_who_asks_is_what_the_proxys_headers_say() -> None:
    found = await named(
        believing(),
        ANN,
        ("X-Remote-Group", "dev"),
        ("x-remote-group", "system:authenticated"),
        ("X-Remote-Uid", "u-1"),
        ("X-Remote-Extra-Acme.com%2Fproject", "some"),
        ("x-remote-extra-acme.com%2fproject", "other"),
    )
    assert found.actor == Actor("ann", ("dev", "system:authenticated"), "u-1", {"acme.com/project": ("some", "other")})
    assert found.actor.holder is Origin.DELEGATED


async def test_headers_without_the_proxys_certificate_are_nothing() -> None:
    proxy = believing()
    assert await proxy.identify(request(None, ANN)) is None
    assert await proxy.identify(request(OTHER.issue("front-proxy-client"), ANN)) is None


async def test_nobody_is_believed_before_it_is_said_who() -> None:
    assert await FrontProxy(SystemClock()).identify(request(PROXY, ANN)) is None


async def test_another_holder_of_a_certificate_of_that_ca_is_not_the_proxy() -> None:
    with pytest.raises(UnauthorizedError, match="cn=mallory is not in the allowed list"):
        await believing().identify(request(CA.issue("mallory"), ANN))
    anyone = believing(**{"requestheader-allowed-names": "[]"})
    assert await anyone.identify(request(CA.issue("mallory"), ANN))


async def test_the_proxy_itself_is_nobody() -> None:
    assert await believing().identify(request(PROXY)) is None
    assert await believing().identify(request(PROXY, ("X-Remote-User", ""))) is None


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Remote-User", "system:open-cluster-management:edge1:abcde")],
        [("X-Remote-User", "system:bootstrap:0123456789abcdef")],
        [ANN, ("X-Remote-Group", "system:open-cluster-management:edge1")],
    ],
)
async def test_a_proxy_speaks_for_no_agent(headers: list[tuple[str, str]]) -> None:
    with pytest.raises(UnauthorizedError, match="agents come by themselves"):
        await believing().identify(request(PROXY, *headers))


async def test_another_ca_is_believed_in_place_of_the_first() -> None:
    proxy, next_ca = believing(), OtherCA("front-proxy-ca")
    gone = proxy.believe(Trust.of_config_map(config_map(**{"requestheader-client-ca-file": next_ca.certificate.decode()})))
    assert len(gone) == 1
    assert await proxy.identify(request(PROXY, ANN)) is None
    assert await proxy.identify(request(next_ca.issue("front-proxy-client"), ANN))


@pytest.mark.parametrize(
    "entries",
    [
        {"requestheader-client-ca-file": ""},
        {"requestheader-username-headers": "[]"},
        {"requestheader-username-headers": "X-Remote-User"},
        {"requestheader-allowed-names": '{"a": 1}'},
        {"requestheader-group-headers": "[1]"},
    ],
)
def test_a_config_map_that_cannot_be_understood_is_refused(entries: dict[str, str]) -> None:
    with pytest.raises(InvalidError):
        Trust.of_config_map(config_map(**entries))
