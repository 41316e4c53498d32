"""HubClient over the Kubernetes API, with one credential."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from hashlib import sha256

import structlog

from machinery.client.rest import KubeClient, Object
from machinery.errors import (
    AlreadyExistsError,
    ConflictError,
    DenialCause,
    ExpiredError,
    ForbiddenError,
    MethodNotAllowedError,
    MusterError,
    NotFoundError,
)
from machinery.identity import AddOnName, ClusterName, HubId
from machinery.meta.conditions import HUB_ACCEPTED
from machinery.observability import tracing
from machinery.pki import check_request
from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import Clock
from machinery.runtime.tasks import cancel_and_wait
from spoke.domain.addon import KUBE_SIGNER, AddOnToken
from spoke.domain.hubs import HubAcceptance
from spoke.domain.names import AgentIdentity
from spoke.domain.next_step import SessionLoss
from spoke.domain.report import ExternalEndpoint
from spoke.ports import hub as ports
from spoke.transports.kubernetes import addons, documents
from spoke.transports.kubernetes.api import ApiDoor, lost_error, read_cluster
from spoke.transports.kubernetes.session import ApiSession

ANOTHER = (
    'the cluster name "{}" belongs to another cluster: register under another name, '
    "or have the other ManagedCluster deleted first"
)
HASHED = 10
NAME_ATTEMPTS = 4
"""Number of names to try if other requests already have the name."""
WATCH_PERIOD = timedelta(minutes=4)
MARGIN = timedelta(seconds=30)
FINAL = frozenset(("issued", "denied", "failed"))

log = structlog.get_logger(__name__)


class ApiHubClient(ports.HubClient):
    """A client that sends nothing before its first call. A session maintains `annotations` on the ManagedCluster."""

    def __init__(
        self,
        address: ports.HubAddress,
        identity: ports.ClientIdentity,
        clock: Clock,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        self._door = ApiDoor(address, identity, clock)
        self._annotations = annotations or {}

    @property
    def features(self) -> frozenset[ports.TransportFeature]:
        return frozenset()

    @tracing.client_span("get hub")
    async def info(self) -> ports.HubInfo:
        version = await self._door.ask_version()
        return ports.HubInfo(HubId(""), self._door.now(), version, self._door.address.ca)

    @tracing.client_span("ensure cluster")
    async def ensure_cluster(
        self,
        agent: AgentIdentity,
        *,
        endpoints: Sequence[ExternalEndpoint],
        annotations: Mapping[str, str],
        labels: Mapping[str, str] = ports.NONE,
    ) -> ports.RegistrationState:
        """Create or find the ManagedCluster.

        Raises AlreadyExistsError if it belongs to another cluster, ForbiddenError if the hub does not allow the creation. The
        bootstrap credential need not have the right to read the ManagedCluster; in OCM it has this right.
        """
        kube, resource, name = await self._door.kube(), self._door.clusters, agent.cluster

        async def seen() -> Object | None:
            try:
                return await kube.get(resource.path(name))
            except (NotFoundError, ForbiddenError):
                return None

        present, created = await seen(), False
        if present is None:
            body = documents.new_cluster(
                resource.group, name, documents.own_annotations(annotations, agent.cluster_uid), endpoints, labels
            )
            try:
                present, created = await kube.create(resource.path(), body), True
            except AlreadyExistsError:
                present = await seen() or {"metadata": {"name": name}}
        if documents.is_another(present, agent.cluster_uid):
            raise AlreadyExistsError(ANOTHER.format(name))
        accepted = documents.section(present, "spec").get("hubAcceptsClient") is True
        return ports.RegistrationState(
            created=created, accepted=accepted, uid=str(documents.section(present, "metadata").get("uid") or "")
        )

    @tracing.client_span("submit request")
    async def submit_request(
        self, agent: AgentIdentity, request: bytes, *, duration: timedelta | None, addon: tuple[AddOnName, str] | None = None
    ) -> str:
        """Create the request, or find an earlier request with the same bytes. Raises InvalidError for an invalid request.

        The name is OCM's prefix and a hash of the bytes. So the agent finds a request that it sent before a crash.
        """
        check_request(request)
        kube, cluster = await self._door.kube(), agent.cluster
        prefix, labels, signer = f"{cluster}-", {documents.CLUSTER_LABEL: str(cluster)}, KUBE_SIGNER
        if addon is not None:
            prefix, signer = f"addon-{cluster}-{addon[0]}-", addon[1]
            labels[documents.ADDON_LABEL] = str(addon[0])
        digest = sha256(request).hexdigest()
        for attempt in range(NAME_ATTEMPTS):
            name = prefix + digest[attempt * HASHED : (attempt + 1) * HASHED]
            try:
                await kube.create(documents.REQUESTS.path(), documents.new_request(name, labels, request, signer, duration))
            except AlreadyExistsError:
                found = await kube.get(documents.REQUESTS.path(name))
                if documents.decoded(documents.section(found, "spec").get("request")) != request:
                    continue
            return name
        raise ConflictError(f"other requests have the names for this certificate signing request ({prefix}...): delete these")

    async def follow_request(self, name: str) -> AsyncGenerator[ports.CSRState, None]:
        last = ""
        async with aclosing(_documents(await self._door.kube(), name)) as requests:
            async for document in requests:
                certificate = documents.decoded(documents.section(document, "status").get("certificate"))
                if certificate:
                    await self._door.ask_version()  # for the hub's time: an expired certificate is useless
                state = documents.request_state(document, certificate, self._door.now())
                if state.state != last:
                    last = state.state
                    yield state
                if last in FINAL:
                    return

    @tracing.client_span("issue addon token")
    async def addon_token(self, cluster: ClusterName, addon: AddOnName, duration: timedelta) -> AddOnToken:
        kube = await self._door.kube()
        path = addons.SERVICE_ACCOUNTS.path(f"{addon}-agent", namespace=cluster, subresource="token")
        return addons.token_of(await kube.create(path, addons.token_request(duration)))

    @asynccontextmanager
    async def session(self, greeting: ports.SessionHello) -> AsyncIterator[ports.HubSession]:
        session = await self._open(greeting.cluster_uid)
        running = asyncio.create_task(_run_guarded(session), name="session over the Kubernetes API")
        try:
            yield session
        finally:
            session.finish(ports.HubLostError("the session was closed"))
            await cancel_and_wait(running)

    @tracing.client_span("stand by")
    async def stand_by(
        self, agent: AgentIdentity, *, owner: HubId | None, epoch: int, trusted: Sequence[str] = ()
    ) -> ports.StandbyAnswer:
        """Return whether the ManagedCluster is accepted, and the hub's time. Report nothing: the Kubernetes API has no StandBy.

        Raises AlreadyExistsError if the cluster name belongs to another cluster.
        """
        del owner, epoch, trusted
        await self._door.ask_version()  # for the hub's time
        try:
            seen = await (await self._door.kube()).get(self._door.clusters.path(agent.cluster))
        except ForbiddenError:
            seen = {}  # a hub of Open Cluster Management grants an agent no rights before it accepts the cluster
        if documents.is_another(seen, agent.cluster_uid):
            raise AlreadyExistsError(f'the cluster name "{agent.cluster}" belongs to another cluster')
        accepted = documents.section(seen, "spec").get("hubAcceptsClient") is True
        return ports.StandbyAnswer(accepted, 0, self._door.now(), self._door.address.ca)

    async def leave(self, agent: AgentIdentity) -> bool:
        where = f'delete the ManagedCluster "{agent.cluster}" at the hub'
        raise MethodNotAllowedError(f"over the Kubernetes API an agent may not delete its cluster: {where}")

    @tracing.client_span("get hub")
    async def acceptance(self, cluster: ClusterName) -> HubAcceptance:
        """Read the acceptance. Forbidden means not accepted, because OCM hubs grant no rights before the acceptance."""
        try:
            seen = await (await self._door.kube()).get(self._door.clusters.path(cluster))
        except ForbiddenError as error:
            return HubAcceptance.DENIED if error.denial_cause is DenialCause.CLUSTER_DENIED else HubAcceptance.WAITING
        except NotFoundError:
            return HubAcceptance.UNKNOWN
        if documents.section(seen, "spec").get("hubAcceptsClient") is True:
            return HubAcceptance.ACCEPTED
        conditions = documents.section(seen, "status").get("conditions")
        known = [each.get("type") for each in conditions if isinstance(each, dict)] if isinstance(conditions, list) else []
        return HubAcceptance.DENIED if HUB_ACCEPTED in known else HubAcceptance.WAITING

    async def withdraw(self, agent: AgentIdentity) -> bool:
        del agent
        raise MethodNotAllowedError("over the Kubernetes API a bootstrap credential may not delete what it registered")

    async def close(self) -> None:
        await self._door.close()

    @tracing.client_span("open session")
    async def _open(self, cluster_uid: str) -> ApiSession:
        try:
            names = self._door.agent()
            await self._door.ask_version()
            try:
                seen = await read_cluster(self._door, names[0])
            except ForbiddenError:
                seen = None
        except MusterError as error:
            raise lost_error(error) from error
        if seen is not None and documents.is_another(seen, cluster_uid):
            raise ports.HubLostError(ANOTHER.format(names[0]), SessionLoss.REFUSED)
        return ApiSession(self._door, names, seen, documents.own_annotations(self._annotations, cluster_uid))


async def _run_guarded(session: ApiSession) -> None:
    """Run the session's background tasks. If an unexpected exception ends a task, log the exception and end the session."""
    try:
        await session.run()
    except Exception:
        log.exception("session.failed")
        session.finish(ports.HubLostError("a part of the session failed: this is a defect of the agent"))


async def _documents(kube: KubeClient, name: str) -> AsyncGenerator[Object, None]:
    """Yield the request now and after each change. List again after the watch was interrupted."""
    pauses = Backoff()
    document = await kube.get(documents.REQUESTS.path(name))
    cluster = documents.section(document, "metadata", "labels").get(documents.CLUSTER_LABEL)
    query = {
        "fieldSelector": f"metadata.name={name}",
        **({"labelSelector": f"{documents.CLUSTER_LABEL}={cluster}"} if cluster else {}),
    }
    while True:
        yield document
        listed = [page async for page in kube.pages(documents.REQUESTS.path(), query)]
        found = [item for page in listed for item in page.items]
        if not found:
            raise NotFoundError(f'the certificate signing request "{name}" is gone')
        yield found[0]
        revision, seconds = listed[-1].resource_version, round(WATCH_PERIOD.total_seconds())
        asked: dict[str, str | int | bool] = {
            **query,
            "resourceVersion": revision,
            "allowWatchBookmarks": True,
            "timeoutSeconds": seconds,
        }
        try:
            async with kube.watch(documents.REQUESTS.path(), asked, within=WATCH_PERIOD + MARGIN) as events:
                async for event in events:
                    if event.type == "DELETED":
                        raise NotFoundError(f'the certificate signing request "{name}" was deleted')
                    if event.type != "BOOKMARK":
                        pauses.reset()
                        yield event.object
        except ExpiredError:
            pass  # the next round lists again
        await asyncio.sleep(pauses.next().total_seconds())
        document = await kube.get(documents.REQUESTS.path(name))
