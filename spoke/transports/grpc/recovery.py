"""HubClient for the holder of a recovery certificate: the call Recover, which submits a request and returns its states."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta

import grpc
from grpc import aio

from machinery.errors import ForbiddenError, NotFoundError, UnavailableError
from machinery.identity import AddOnName
from machinery.wire.registration.v1 import registration_pb2 as wire
from machinery.wire.registration.v1.registration_pb2_grpc import RegistrationStub
from spoke.domain.names import AgentIdentity
from spoke.domain.report import ExternalEndpoint
from spoke.ports.hub import NONE, CSRState, RegistrationState
from spoke.transports.grpc.client import GrpcHubClient, carried, named
from spoke.transports.grpc.errors import to_error
from spoke.transports.grpc.messages import request_state


class RecoveringHubClient(GrpcHubClient):
    """Obtains a certificate like any client; the hub refuses all other calls."""

    _asked: wire.RecoverRequest | None = None

    async def ensure_cluster(
        self,
        agent: AgentIdentity,
        *,
        endpoints: Sequence[ExternalEndpoint],
        annotations: Mapping[str, str],
        labels: Mapping[str, str] = NONE,
    ) -> RegistrationState:
        del agent, endpoints, annotations, labels
        raise ForbiddenError("a recovery certificate brings back an agent and registers no cluster")

    async def submit_request(
        self, agent: AgentIdentity, request: bytes, *, duration: timedelta | None, addon: tuple[AddOnName, str] | None = None
    ) -> str:
        if addon is not None:
            raise ForbiddenError("a recovery certificate brings back an agent and no add-on")
        asked = wire.RecoverRequest(**named(agent), request=request)
        if duration is not None:
            asked.requested_duration.FromTimedelta(duration)
        self._asked = asked
        async with aclosing(self._answers(asked)) as answers:
            async for answer in answers:
                return answer.name
        raise UnavailableError("the hub did not say under which name it keeps the certificate signing request")

    async def follow_request(self, name: str) -> AsyncGenerator[CSRState, None]:
        """Raises NotFoundError for a request that this client has not submitted; the caller then submits it again."""
        if self._asked is None:
            raise NotFoundError(f'the certificate signing request "{name}" was submitted with another credential')
        async with aclosing(self._answers(self._asked)) as answers:
            async for answer in answers:
                if (state := request_state(answer)) is not None:
                    yield state

    async def _answers(self, asked: wire.RecoverRequest) -> AsyncGenerator[wire.FollowRequestResponse, None]:
        call = RegistrationStub(self._channel).Recover(asked, metadata=carried())
        try:
            async for answer in call:
                yield answer
        except aio.AioRpcError as error:
            told = to_error(error)
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise UnavailableError(await self._explained(told.message), retry_after=told.retry_after) from error
            raise told from error
        finally:
            call.cancel()
