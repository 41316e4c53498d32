"""What agents and hubs of every release have said (`tests/fixtures/versions`, never changed) works with this one."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from hub.api.certificates import Lifetimes
from hub.issuer.local import LocalIssuer, ServingNames
from machinery import pki
from machinery.client.kubeconfig import Credential
from machinery.identity import AgentId, ClusterName, agent_id, agent_subject
from machinery.runtime.clock import SystemClock
from machinery.wire.registration.v1 import registration_pb2 as registration
from machinery.wire.session.v1 import session_pb2 as session
from spoke.domain.names import AgentIdentity, AgentNames
from spoke.domain.report import ClusterReport
from spoke.ports.hub import ClientIdentity, HubAddress, SessionHello
from spoke.transports.grpc.client import GrpcHubClient
from tests.fakes.inprocess_hub import HUB
from tests.fakes.rpc_stage import RpcStage, rpc_stage
from tests.fakes.tape import CONNECT, DOWN, REGISTRATION, UP, Tape, kinds, read_tape

RELEASES = sorted(Path(__file__).parents[1].joinpath("fixtures", "versions").glob("*.*/"))
RELEASED = pytest.mark.parametrize("release", RELEASES, ids=[folder.name for folder in RELEASES])
CLUSTER, UID, SOON = ClusterName("edge1"), "uid-of-edge1", 20
GET, ENSURE, SUBMIT, FOLLOW = (
    f"/{REGISTRATION}/{name}" for name in ("GetHub", "EnsureCluster", "SubmitRequest", "FollowRequest")
)


def test_a_release_has_left_something() -> None:
    assert [folder.name for folder in RELEASES][:1] == ["0.1"]


@RELEASED
async def test_an_agent_of_every_release_joins_and_reports_by_what_it_said_then(release: Path, tmp_path: Path) -> None:
    """Its very bytes; only the signing request is made anew, because its key was not kept."""
    tape = read_tape(release / "agent.jsonl")
    async with rpc_stage(tmp_path) as stage:
        async with stage.channel(await stage.bootstrap(CLUSTER)) as channel:
            credential = await joined(stage, channel, tape)
        async with stage.channel(credential) as channel, asyncio.timeout(SOON):
            stream: Any = channel.stream_stream(CONNECT)()
            got, wanted = (list[str](), kinds([session.HubMessage.FromString(each) for each in tape.of(CONNECT, DOWN)]))
            for each in tape.of(CONNECT, UP):
                await stream.write(each)
            while any(got.count(kind) < 1 for kind in set(wanted)) or got[:1] != ["welcome"]:
                message = session.HubMessage.FromString(await stream.read())
                got += kinds([message])
                if message.WhichOneof("message") == "beat_ack":
                    acknowledged = message.beat_ack.sequence
            stream.cancel()
        beats = [up.beat.sequence for up in map(session.AgentMessage.FromString, tape.of(CONNECT, UP)) if up.HasField("beat")]
        assert acknowledged <= max(beats)
        conditions = {each["type"]: each["status"] for each in (await stage.cluster(CLUSTER))["status"]["conditions"]}
        assert conditions["ManagedClusterJoined"] == "True"


async def joined(stage: RpcStage, channel: Any, tape: Tape) -> Credential:
    """With each call in its order; every field that an answer had then it has now."""

    async def called(call: str, message: bytes, kind: Any) -> Any:
        answer = kind.FromString(await channel.unary_unary(call)(message))
        then = kind.FromString(tape.of(call, DOWN)[0])
        assert {field.name for field, _ in then.ListFields()} <= {field.name for field, _ in answer.ListFields()}, call
        return answer

    await called(GET, tape.of(GET, UP)[0], registration.GetHubResponse)
    await called(ENSURE, tape.of(ENSURE, UP)[0], registration.EnsureClusterResponse)
    asked, key = registration.SubmitRequestRequest.FromString(tape.of(SUBMIT, UP)[0]), pki.generate_key()
    asked.request = pki.build_request(agent_subject(CLUSTER, agent_id(asked.agent_id)), key)
    name = (await called(SUBMIT, asked.SerializeToString(), registration.SubmitRequestResponse)).name
    await stage.accept(CLUSTER)
    await stage.approve(name)
    follow = registration.FollowRequestRequest.FromString(tape.of(FOLLOW, UP)[0])
    follow.name = name
    answers = channel.unary_stream(FOLLOW)(follow.SerializeToString())
    states = [registration.FollowRequestResponse.FromString(recorded) async for recorded in answers]
    assert states[-1].state == registration.FollowRequestResponse.STATE_ISSUED
    return Credential(states[-1].certificate, key)


@asynccontextmanager
async def played(folder: Path, tape: Tape) -> AsyncIterator[GrpcHubClient]:
    """This release's client at a hub that answers with what one of that release has answered, byte for byte."""
    clock, lifetimes = SystemClock(), Lifetimes()
    issuer = LocalIssuer.open(folder, lifetimes, clock.now())
    shown = issuer.serving(folder, ServingNames(("localhost",), ("127.0.0.1",)), lifetimes, clock.now())
    server = aio.server()
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(shown.key, shown.chain)]))
    server.add_generic_rpc_handlers((Player(tape),))
    await server.start()
    client = GrpcHubClient(HubAddress(f"localhost:{port}", issuer.trust_bundle), ClientIdentity(shown.chain, shown.key), clock)
    try:
        yield client
    finally:
        await client.close()
        await server.stop(None)


class Player(grpc.GenericRpcHandler):
    """Answers each call as it was answered then. In a session an answer comes after all that was said before it."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def service(self, details: Any) -> Any:
        call = details.method
        if call == CONNECT:
            return grpc.stream_stream_rpc_method_handler(self._session)
        if call == FOLLOW:
            return grpc.unary_stream_rpc_method_handler(self._stream)

        async def answer(_message: bytes, _context: Any) -> bytes:
            return self._tape.of(call, DOWN)[0]

        return grpc.unary_unary_rpc_method_handler(answer)

    async def _stream(self, _message: bytes, _context: Any) -> AsyncIterator[bytes]:
        for message in self._tape.of(FOLLOW, DOWN):
            yield message

    async def _session(self, messages: AsyncIterator[bytes], _context: Any) -> AsyncIterator[bytes]:
        beats = reports = 0
        answers = list(self._tape.of(CONNECT, DOWN))
        async for message in messages:
            recorded = session.AgentMessage.FromString(message)
            beats, reports = max(beats, recorded.beat.sequence), max(reports, recorded.status.sequence)
            while answers:
                answer = session.HubMessage.FromString(answers[0])
                if answer.beat_ack.sequence > beats or answer.report_ack.sequence > reports:
                    break
                yield answers.pop(0)


@RELEASED
async def test_an_agent_understands_what_a_hub_of_every_release_answered(release: Path, tmp_path: Path) -> None:
    async with played(tmp_path, read_tape(release / "agent.jsonl")) as client, asyncio.timeout(SOON):
        info = await client.info()
        assert info.hub_id == HUB
        assert b"BEGIN CERTIFICATE" in info.trust_bundle
        agent = AgentId("agent")
        registered = await client.ensure_cluster(AgentIdentity(AgentNames(CLUSTER, agent), UID), endpoints=(), annotations={})
        assert (registered.created, bool(registered.uid)) == (True, True)
        name = await client.submit_request(AgentIdentity(AgentNames(CLUSTER, agent), UID), b"request", duration=None)
        async with aclosing(client.follow_request(name)) as following:
            states = [state async for state in following]
        assert states[-1].state == "issued"
        given = (states[-1].certificate, states[-1].recovery_certificate)
        assert len({pki.parse_certificate(each).key_hash for each in given}) == 1
        async with client.session(SessionHello(UID)) as opened:
            assert opened.beat_interval == timedelta(seconds=10)
            desired = await anext(opened.desired())
            assert (desired.accepted, desired.lease_duration) == (True, timedelta(seconds=60))
            await opened.beat(available=True)
            assert await opened.report(ClusterReport((), complete=True)) >= 0
            await opened.beat(available=True)
