"""HubClient over the Kubernetes API, with one credential."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

import structlog

from machinery.errors import (
    AlreadyExistsError,
    DenialCause,
    ForbiddenError,
    MethodNotAllowedError,
    MusterError,
    NotFoundError,
    UnauthorizedError,
)
from machinery.identity import AddOnName, ClusterName, HubId
from machinery.meta.conditions import HUB_ACCEPTED
from machinery.observability import tracing
from machinery.runtime.clock import Clock
from spoke.domain.names import AgentIdentity
from spoke.domain.next_step import SessionEnd, loss_of
from spoke.domain.report import ExternalEndpoint
from spoke.ports.hub import (
    NONE,
    AddOnToken,
    Capability,
    ClientIdentity,
    CSRState,
    HubAcceptance,
    HubAddress,
    HubClient,
    HubInfo,
    HubLostError,
    HubSession,
    RegistrationState,
    SessionHello,
    StandbyAnswer,
)
from spoke.transports.kubernetes.api import ApiDoor
from spoke.transports.kubernetes.documents import (
    SERVICE_ACCOUNTS,
    is_another,
    own_annotations,
    section,
    token_of,
    token_request,
)
from spoke.transports.kubernetes.objects import ClusterMaintenance, ensure_cluster, follow_request, look, submit_request
from spoke.transports.kubernetes.session import ApiSession

log = structlog.get_logger(__name__)


class ApiHubClient(HubClient):
    """Sends nothing before the first call. `annotations` are maintained on the ManagedCluster while a session lasts."""

    def __init__(
        self, address: HubAddress, identity: ClientIdentity, clock: Clock, annotations: Mapping[str, str] | None = None
    ) -> None:
        self._door = ApiDoor(address, identity, clock)
        self._annotations = annotations or {}

    @property
    def capabilities(self) -> frozenset[Capability]:
        return frozenset()

    @tracing.client_span("get hub")
    async def info(self) -> HubInfo:
        version = await self._door.ask_version()
        return HubInfo(HubId(""), self._door.now(), version, self._door.address.ca)

    @tracing.client_span("ensure cluster")
    async def ensure_cluster(
        self,
        agent: AgentIdentity,
        *,
        endpoints: Sequence[ExternalEndpoint],
        annotations: Mapping[str, str],
        labels: Mapping[str, str] = NONE,
    ) -> RegistrationState:
        return await ensure_cluster(
            self._door, agent.cluster, agent.cluster_uid, endpoints=endpoints, annotations=annotations, labels=labels
        )

    @tracing.client_span("submit request")
    async def submit_request(
        self, agent: AgentIdentity, request: bytes, *, duration: timedelta | None, addon: tuple[AddOnName, str] | None = None
    ) -> str:
        return await submit_request(self._door, agent.cluster, request, duration=duration, addon=addon)

    def follow_request(self, name: str) -> AsyncGenerator[CSRState, None]:
        return follow_request(self._door, name)

    @tracing.client_span("issue addon token")
    async def addon_token(self, cluster: ClusterName, addon: AddOnName, duration: timedelta) -> AddOnToken:
        kube = await self._door.kube()
        path = SERVICE_ACCOUNTS.path(f"{addon}-agent", namespace=cluster, subresource="token")
        return token_of(await kube.create(path, token_request(duration)))

    @asynccontextmanager
    async def session(self, greeting: SessionHello) -> AsyncIterator[HubSession]:
        session = await self._opened(greeting.cluster_uid)
        running = asyncio.create_task(_guarded(session), name="session over the Kubernetes API")
        try:
            yield session
        finally:
            session.finish(HubLostError("the session was closed"))
            running.cancel()
            await asyncio.wait((running,))

    @tracing.client_span("stand by")
    async def stand_by(
        self, agent: AgentIdentity, *, owner: HubId | None, epoch: int, trusted: Sequence[str] = ()
    ) -> StandbyAnswer:
        """The Kubernetes API has no StandBy: nothing is reported, and the answer is read from the ManagedCluster."""
        del owner, epoch, trusted
        await self._door.ask_version()  # for the hub's time
        try:
            seen = await (await self._door.kube()).get(self._door.clusters.path(agent.cluster))
        except ForbiddenError:
            seen = {}  # a hub of Open Cluster Management lets an agent read nothing before it accepts it
        if is_another(seen, agent.cluster_uid):
            raise AlreadyExistsError(f'the cluster name "{agent.cluster}" belongs to another cluster')
        accepted = section(seen, "spec").get("hubAcceptsClient") is True
        return StandbyAnswer(accepted, 0, self._door.now(), self._door.address.ca)

    async def leave(self, agent: AgentIdentity) -> bool:
        where = f'delete the ManagedCluster "{agent.cluster}" at the hub'
        raise MethodNotAllowedError(f"over the Kubernetes API an agent may not delete its cluster: {where}")

    @tracing.client_span("get hub")
    async def acceptance(self, cluster: ClusterName) -> HubAcceptance:
        """A hub of Open Cluster Management lets an agent read nothing before it accepts it."""
        try:
            seen = await (await self._door.kube()).get(self._door.clusters.path(cluster))
        except ForbiddenError as error:
            return HubAcceptance.DENIED if error.verdict is DenialCause.CLUSTER_DENIED else HubAcceptance.WAITING
        except NotFoundError:
            return HubAcceptance.UNKNOWN
        if section(seen, "spec").get("hubAcceptsClient") is True:
            return HubAcceptance.ACCEPTED
        conditions = section(seen, "status").get("conditions")
        known = [each.get("type") for each in conditions if isinstance(each, dict)] if isinstance(conditions, list) else []
        return HubAcceptance.DENIED if HUB_ACCEPTED in known else HubAcceptance.WAITING

    async def withdraw(self, agent: AgentIdentity) -> bool:
        del agent
        raise MethodNotAllowedError("over the Kubernetes API a bootstrap credential may not delete what it registered")

    async def close(self) -> None:
        await self._door.close()

    @tracing.client_span("open session")
    async def _opened(self, cluster_uid: str) -> ApiSession:
        try:
            names = self._door.agent()
            await self._door.ask_version()
            try:
                seen = await look(self._door, names[0])
            except ForbiddenError:
                seen = None
        except HubLostError:
            raise
        except UnauthorizedError as error:
            raise HubLostError(error.message, loss_of(error.verdict, SessionEnd.UNAUTHENTICATED)) from error
        except MusterError as error:
            raise HubLostError(error.message, SessionEnd.UNREACHABLE, retry_after=error.retry_after) from error
        if seen is not None and is_another(seen, cluster_uid):
            raise HubLostError(
                f'the cluster name "{names[0]}" belongs to another cluster: register under another name, '
                "or have the other ManagedCluster deleted first",
                SessionEnd.REFUSED,
            )
        keeping = ClusterMaintenance(self._door, own_annotations(self._annotations, cluster_uid))
        return ApiSession(self._door, names, seen, keeping)


async def _guarded(session: ApiSession) -> None:
    """End the session, and log, if a background task fails by a defect of ours."""
    try:
        await session.run()
    except Exception:
        log.exception("session.failed")
        session.finish(HubLostError("a part of the session failed: this is a defect of the agent"))
