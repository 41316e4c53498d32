"""A hub that cannot be reached is told with what is really wrong: TLS itself tells a gRPC client next to nothing."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import grpc
import pytest
from grpc import aio

from machinery.client.kubeconfig import Credential
from machinery.errors import MethodNotAllowedError, UnavailableError
from machinery.identity import AgentId, CertificateSubject, ClusterName, CredentialId, bootstrap_subject
from machinery.meta.timestamps import format_time
from machinery.pki import Plan, Usage, generate_key, public_key_of, random_serial
from machinery.runtime.clock import Clock, ManualClock, SystemClock
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.domain.next_step import SessionEnd
from spoke.ports.hub import ClientIdentity, Greeting, HubAddress, HubLostError
from spoke.transports.grpc import channel
from spoke.transports.grpc import client as client_module
from spoke.transports.grpc.channel import AddressRotation
from spoke.transports.grpc.client import GrpcHubClient
from tests.fakes.hub import MemoryHub


@asynccontextmanager
async def dialled(address: HubAddress, credential: Credential, clock: Clock) -> AsyncIterator[GrpcHubClient]:
    client = GrpcHubClient(address, ClientIdentity(credential.chain, credential.key), clock)
    try:
        yield client
    finally:
        await client.close()


async def trouble(clock: Clock, port: int, trust: bytes, credential: Credential) -> str:
    """The message of a call and of a session, which name the same time of the agent's clock."""
    async with dialled(HubAddress(f"127.0.0.1:{port}", trust), credential, clock) as client:
        with pytest.raises(UnavailableError) as unary:
            await client.info()
        with pytest.raises(HubLostError) as stream:
            async with client.session(Greeting("uid")):
                pass
    assert stream.value.message == unary.value.message
    return unary.value.message


async def test_failed_connection_is_reported_with_its_cause() -> None:
    clock = ManualClock(SystemClock().now())
    hub, other, day = MemoryHub(clock), MemoryHub(clock), timedelta(days=1)
    trust, spent = (
        hub.authority.certificate,
        hub.credential(bootstrap_subject(CredentialId("x")), lifetime=timedelta(minutes=-1)),
    )
    behind = ("the clock of this machine is behind", format_time(clock.now()), format_time(clock.now() + day))
    remedy = "make a new bootstrap kubeconfig there with hubctl create bootstrap-kubeconfig"
    rows = (
        (day, trust, hub.credential(), behind),
        (-day, other.authority.certificate, other.credential(), ("is not the hub that the kubeconfig names", remedy)),
        (-day, trust, spent, ("refused our client certificate", "expired at")),
        (-day, trust, other.credential(), ("refused our client certificate",)),
    )
    wrong = []
    for begins_in, trusted, credential, words in rows:
        async with bare_server(hub, begins_in=begins_in) as port:
            message = await trouble(clock, port, trusted, credential)
        if not all(word in message for word in words):
            wrong.append((words, message))
    assert not wrong
    nobody_listens = await trouble(clock, port, trust, hub.credential())
    assert f"the hub at 127.0.0.1:{port} cannot be reached" in nobody_listens


async def test_hub_of_a_release_without_standby_is_recognized_by_its_missing_methods() -> None:
    """It knows no such method: so does a server without any."""
    hub = MemoryHub(ManualClock(SystemClock().now()))
    async with (
        bare_server(hub) as port,
        dialled(HubAddress(f"127.0.0.1:{port}", hub.authority.certificate), hub.credential(), hub.clock) as client,
    ):
        with pytest.raises(MethodNotAllowedError):
            await client.stand_by(
                AgentIdentity(AgentNames(ClusterName("berlin"), AgentId("abcde")), "uid"), owner=None, epoch=1
            )
        with pytest.raises(MethodNotAllowedError):
            await client.leave(AgentIdentity(AgentNames(ClusterName("berlin"), AgentId("abcde")), "uid"))


async def test_replica_that_accepts_and_stays_silent_is_left_after_five_seconds_for_another_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert timedelta(seconds=5) == client_module.WELCOME_TIMEOUT
    monkeypatch.setattr(client_module, "WELCOME_TIMEOUT", timedelta(milliseconds=300))
    monkeypatch.setattr(channel, "DIAGNOSIS_TIMEOUT", timedelta(milliseconds=300))
    loop = asyncio.get_running_loop()

    async def two(_host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (place, port)) for place in ("127.0.0.1", "127.0.0.2")]

    monkeypatch.setattr(loop, "getaddrinfo", two)
    hub, turns = MemoryHub(ManualClock(SystemClock().now())), AddressRotation()
    with socket.create_server(("127.0.0.1", 0)) as frozen:
        port = frozen.getsockname()[1]
        address, credential = HubAddress(f"127.0.0.1:{port}", hub.authority.certificate), hub.credential()
        async with bare_server(hub, place=f"127.0.0.2:{port}"):
            losses = []
            for _ in range(2):
                client = GrpcHubClient(address, ClientIdentity(credential.chain, credential.key), hub.clock, turns=turns)
                with pytest.raises(HubLostError) as lost:
                    async with client.session(Greeting("uid")):
                        pass
                losses.append(lost.value.loss)
                await client.close()
    assert losses[0] is SessionEnd.SILENT
    assert losses[1] is not SessionEnd.SILENT, "the other replica has answered: it knows no such method"
    assert (await turns.dialled(address))[0] == f"ipv4:127.0.0.2:{port},127.0.0.1:{port}"
    turns.silent(address.target)
    assert (await turns.dialled(address))[0] == f"ipv4:127.0.0.1:{port},127.0.0.2:{port}"


DAY = timedelta(days=1)


@asynccontextmanager
async def bare_server(hub: MemoryHub, *, begins_in: timedelta = -DAY, place: str = "127.0.0.1:0") -> AsyncIterator[int]:
    """Listens there with a certificate of the CA of `hub`, for 127.0.0.1, which begins so long after its present time."""
    key, begin = generate_key(), hub.clock.now() + begins_in
    local = ("127.0.0.1",)
    plan = Plan(
        CertificateSubject("hub"),
        public_key_of(key),
        random_serial(),
        begin,
        begin + 30 * DAY,
        Usage.SERVER,
        ip_addresses=local,
    )
    certificate = hub.authority.certificate
    server = aio.server(options=[("grpc.so_reuseport", 0)])
    credentials = grpc.ssl_server_credentials(
        [(key, hub.authority.sign(plan))], root_certificates=certificate, require_client_auth=True
    )
    port = server.add_secure_port(place, credentials)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)
