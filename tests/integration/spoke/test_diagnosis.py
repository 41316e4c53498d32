"""A hub that cannot be reached is told with what is really wrong: TLS itself tells a gRPC client next to nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from machinery.clock import Clock, ManualClock, SystemClock
from machinery.errors import UnavailableError
from machinery.identity import CredentialId, bootstrap_subject
from machinery.kubeconfig import Credential
from machinery.timestamps import format_time
from spoke.hubclient.client import GrpcHubClient
from spoke.ports import ClientIdentity, Greeting, HubAddress, HubLostError
from tests.fakes.hub import MemoryHub
from tests.fakes.wire_hub import listen


@asynccontextmanager
async def dialled(address: HubAddress, credential: Credential, clock: Clock) -> AsyncIterator[GrpcHubClient]:
    client = GrpcHubClient(address, ClientIdentity(credential.chain, credential.key), clock)
    try:
        yield client
    finally:
        await client.close()


async def trouble(clock: Clock, port: int, trust: bytes, credential: Credential) -> str:
    """What the agent is told, twice at the same moment of its clock: what is said names that to the second."""
    async with dialled(HubAddress(f"127.0.0.1:{port}", trust), credential, clock) as client:
        with pytest.raises(UnavailableError) as unary:
            await client.info()
        with pytest.raises(HubLostError) as stream:
            async with client.session(Greeting("uid")):
                pass
    assert stream.value.message == unary.value.message
    return unary.value.message


def standing() -> Clock:
    """The machine's time, which stands still."""
    return ManualClock(SystemClock().now())


async def test_a_clock_behind_the_hubs_certificate_is_told_with_both_times() -> None:
    hub = MemoryHub(standing())
    async with listen(hub, begins_in=timedelta(days=1)) as listening:
        said = await trouble(hub.clock, listening.port, hub.authority.certificate, hub.credential())
    assert "the clock of this machine is behind" in said
    assert format_time(hub.clock.now()) in said
    assert format_time(hub.clock.now() + timedelta(days=1)) in said


async def test_nobody_listening_is_told_with_the_address() -> None:
    hub = MemoryHub(standing())
    async with listen(hub) as listening:
        port = listening.port
    said = await trouble(hub.clock, port, hub.authority.certificate, hub.credential())
    assert f"the hub at 127.0.0.1:{port} cannot be reached" in said


async def test_a_server_with_another_ca_is_told_as_another_hub() -> None:
    hub, other = MemoryHub(standing()), MemoryHub(standing())
    async with listen(hub) as listening:
        said = await trouble(hub.clock, listening.port, other.authority.certificate, other.credential())
    assert "is not the hub that the kubeconfig names" in said
    assert "make a new bootstrap kubeconfig there with hubctl create bootstrap-kubeconfig" in said, (
        "its CA may have gone at once"
    )


async def test_an_expired_client_certificate_is_suspected() -> None:
    hub = MemoryHub(standing())
    spent = hub.credential(bootstrap_subject(CredentialId("x")), lifetime=timedelta(minutes=-1))
    async with listen(hub) as listening:
        said = await trouble(hub.clock, listening.port, hub.authority.certificate, spent)
    assert "refused our client certificate" in said
    assert "expired at" in said


async def test_a_client_certificate_of_another_ca_is_told_as_refused() -> None:
    hub, other = MemoryHub(standing()), MemoryHub(standing())
    async with listen(hub) as listening:
        said = await trouble(hub.clock, listening.port, hub.authority.certificate, other.credential())
    assert "refused our client certificate" in said
