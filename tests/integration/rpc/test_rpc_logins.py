"""A login's certificate opens nothing at the agents' door, on whichever call."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from grpc import aio

from hub.domain.login import Login
from hub.services import logins
from machinery import pki
from machinery.identity import OPERATOR_GROUP
from machinery.kubeconfig import Credential
from machinery.wire.registration.v1 import registration_pb2
from machinery.wire.session.v1 import session_pb2
from tests.fakes.rpc_stage import RpcStage

EMPTY: Any = b""
METHODS: list[MethodDescriptor] = [
    method
    for module in (registration_pb2, session_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


async def _once() -> AsyncIterator[Any]:
    yield b""


async def refusal(channel: aio.Channel, method: MethodDescriptor) -> grpc.StatusCode:
    """How a call with an empty message ends."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    call: Any = channel.stream_stream(path)(_once()) if method.client_streaming else channel.unary_stream(path)(EMPTY)
    try:
        async for _answer in call:
            pass
    except aio.AioRpcError as error:
        return error.code()
    code: grpc.StatusCode = await call.code()
    return code


@pytest.mark.parametrize("groups", [("ops",), ("ops", OPERATOR_GROUP)], ids=["somebody", "an operator"])
async def test_a_login_opens_no_call_of_the_agents_door(stage: RpcStage, groups: tuple[str, ...]) -> None:
    key = pki.generate_key()
    login = Login("ann", groups)
    issued = await stage.store.run(logins.admit, login, pki.public_key_of(key), stage.issuer, stage.lifetimes)
    async with stage.channel(Credential(issued.chain, key)) as channel:
        codes = {method.name: await refusal(channel, method) for method in METHODS}
    assert len(codes) > 8
    assert codes == dict.fromkeys(codes, grpc.StatusCode.PERMISSION_DENIED)
