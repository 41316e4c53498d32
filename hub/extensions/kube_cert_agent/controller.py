"""Keeps the cert agent's Deployment, fetches the cluster's CA through its pod, and reports the result, on every replica.

Only the leader writes the Deployment and the strategy in the CredentialIssuer. All replicas fetch the key from the leader's
pod. An error in writing the Deployment is reported only at the end, because the pod of an existing Deployment may serve as
well. A fetched key is kept, whatever fails later.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Protocol

import structlog

from hub.api.credentialissuers import ERROR, KUBE_CLUSTER_SIGNING, SUCCESS, Strategy
from hub.api.meta import document as doc
from hub.election.fence import FencedStore
from hub.extensions.kube_cert_agent import deployment as rules, pods as choosing
from hub.extensions.kube_cert_agent.cluster_client import ClusterClient, ClusterInfo, cluster_info, is_outdated
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape
from hub.extensions.kube_cert_agent.issuer import AuthorityProvider
from hub.extensions.kube_cert_agent.pods import parse_printed
from hub.ports import Store
from hub.registry import authenticators as logins
from machinery.errors import MusterError, NotFoundError, NotLeaderError, UnavailableError
from machinery.meta.objects import Document
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Reconciler

FETCHED_KEY = "FetchedKey"
COULD_NOT_FETCH_KEY = "CouldNotFetchKey"
COULD_NOT_GET_CLUSTER_INFO = "CouldNotGetClusterInfo"


class StepError(Exception):
    """`reason`: of the strategy. `cause`: the error to raise for a retry."""

    def __init__(self, reason: str, cause: MusterError) -> None:
        super().__init__(cause.message)
        self.reason = reason
        self.cause = cause


def said(what: str, error: MusterError) -> MusterError:
    """The error with the failed action before its message."""
    return type(error)(f"{what}: {error.message}")


NAME, KEY, CLEANER = "kube-cert-agent", "agent", "kube-cert-agent-cleaner"
KEPT = timedelta(minutes=15)
"""A key is not fetched again from the same pod within this time."""
RESYNC = timedelta(minutes=3)
LOOK_AGAIN = timedelta(seconds=5)
"""Retry interval of a follower that waits for the leader's Deployment."""
FETCHED = "key was fetched successfully"
MANAGED = "; on a cluster whose control plane is somebody else's to run, none is to be seen, and that is to be expected"

log = structlog.get_logger(__name__)


class Book(Protocol):
    """Records strategies. All methods raise MusterError."""

    def leads(self) -> bool:
        """Whether this replica may write now."""

    async def look(self) -> None:
        """Raises if the CredentialIssuer cannot be read."""

    async def tell(self, strategy: Strategy) -> None:
        """Record a strategy. Raises NotLeaderError too."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The source of a key: agent pod and controller-manager instance, and the time of the next fetch."""

    agent: str
    manager: str
    until: float


class KubeCertAgent(Reconciler[str]):
    """It has only one key. `server` overrides the one in cluster-info."""

    def __init__(
        self,
        cluster: ClusterClient,
        shape: AgentDeploymentShape,
        keeper: AuthorityProvider,
        book: Book,
        *,
        clock: Clock,
        server: str = "",
    ) -> None:
        self._cluster = cluster
        self._shape = shape
        self._keeper = keeper
        self._book = book
        self._clock = clock
        self._server = server
        self._loaded: _Loaded | None = None
        self._last = ""
        self.fetched = 0
        """Keys read from a pod since the start."""

    async def reconcile(self, key: str) -> timedelta | None:
        """Raises errors of the fetch and of its report, so that they are retried."""
        del key
        await self._book.look()
        strategy = Strategy(KUBE_CLUSTER_SIGNING, SUCCESS, FETCHED_KEY, FETCHED)
        failure: MusterError | None = None
        try:
            info = await self._look()
            strategy = replace(strategy, server=info.server, authority=info.authority, signer=self._keeper.signer)
        except StepError as step:
            failure = step.cause
            strategy = replace(strategy, status=ERROR, reason=step.reason, message=failure.message)
        self._last = strategy.reason
        if not self._book.leads():
            return self._followed(failure)
        return await self._tell(strategy, failure)

    def snapshot(self) -> Mapping[str, object]:
        """State for the debug report, without secrets."""
        return {"reason": self._last, "signer": self._keeper.signer, "keys fetched": self.fetched}

    def _followed(self, failure: MusterError | None) -> timedelta:
        if failure is not None and not isinstance(failure, NotLeaderError):
            raise failure
        return RESYNC if failure is None else LOOK_AGAIN

    async def _tell(self, strategy: Strategy, failure: MusterError | None) -> timedelta:
        try:
            await self._book.tell(strategy)
        except MusterError as error:
            untold = said("could not tell it on the CredentialIssuer", error)
            raise untold if failure is None else UnavailableError(f"[{failure.message}, {untold.message}]") from error
        if failure is not None:
            raise failure
        return RESYNC

    async def _look(self) -> ClusterInfo:
        """Fetch everything. Raises StepError."""
        manager = await self._manager()
        unwritten = await self._keep_deployment(manager)
        try:
            agent = await self._agent()
            info = await self._cluster_info()
            await self._load(agent, manager)
        except StepError as step:
            raise step if unwritten is None else StepError(step.reason, unwritten) from step
        if unwritten is not None:
            raise StepError(COULD_NOT_FETCH_KEY, unwritten)
        return info

    async def _manager(self) -> Document:
        try:
            pods = await self._cluster.managers()
            running = choosing.running(pods)
            # a single candidate needs no nodes
            nodes = await self._cluster.nodes() if len(running) > 1 else ()
        except MusterError as error:
            raise StepError(COULD_NOT_FETCH_KEY, said("could not look for a controller-manager pod", error)) from error
        found = choosing.preferred(running, nodes)
        if found is None:
            hint = "" if pods else MANAGED
            message = f"could not find a healthy kube-controller-manager pod ({choosing.candidates(pods)}){hint}"
            raise StepError(COULD_NOT_FETCH_KEY, NotFoundError(message))
        return found

    async def _keep_deployment(self, manager: Document) -> MusterError | None:
        """Write the Deployment if necessary. Returns the error, if any."""
        try:
            wanted = rules.deployment(self._shape, manager, await self._cluster.owner())
            existing = await self._cluster.deployment()
            if existing is not None and rules.is_as_wanted(existing, wanted):
                return None
            if not self._book.leads():
                return NotLeaderError("the agent's Deployment is the leader's to write")
            await self._write(existing, wanted)
        except MusterError as error:
            return said("could not ensure the agent's Deployment", error)
        return None

    async def _write(self, existing: Document | None, wanted: dict[str, object]) -> None:
        name = f"{self._shape.namespace}/{self._shape.name}"
        if existing is None:
            await self._cluster.create(wanted)
            log.info("cert agent's Deployment made", deployment=name)
        elif rules.has_other_selector(existing, wanted):
            await self._cluster.remove(existing)
            await self._cluster.create(wanted)
            log.info("cert agent's Deployment made anew: it was of an older form", deployment=name)
        else:
            await self._cluster.replace(rules.updated(existing, wanted))
            log.info("cert agent's Deployment updated", deployment=name)

    async def _agent(self) -> Document:
        try:
            pods = await self._cluster.agents()
        except MusterError as error:
            raise StepError(COULD_NOT_FETCH_KEY, said("could not look for an agent pod", error)) from error
        running = choosing.running(pods)
        if not running:
            message = f"could not find a healthy agent pod ({choosing.candidates(pods)})"
            raise StepError(COULD_NOT_FETCH_KEY, NotFoundError(message))
        return running[0]

    async def _cluster_info(self) -> ClusterInfo:
        try:
            return cluster_info(await self._cluster.cluster_info(), self._server)
        except MusterError as error:
            raise StepError(COULD_NOT_GET_CLUSTER_INFO, said("could not get the cluster's address", error)) from error

    async def _load(self, agent: Document, manager: Document) -> None:
        uid, name = str(doc.mapping(agent, "metadata").get("uid") or ""), doc.name(agent)
        instance, now = choosing.instance(manager), self._clock.monotonic()
        held = self._loaded
        if held is not None and (held.agent, held.manager) == (uid, instance) and now < held.until:
            return
        try:
            printed = parse_printed(await self._cluster.printed(name), name)
            self._keeper.set(printed.certificate, printed.key)
        except MusterError as error:
            failed = said(f"could not load the key from agent pod {self._shape.namespace}/{name}", error)
            raise StepError(COULD_NOT_FETCH_KEY, failed) from error
        self._loaded = _Loaded(uid, instance, now + KEPT.total_seconds())
        self.fetched += 1
        log.info("CA of the Kubernetes cluster loaded", pod=name, signer=self._keeper.signer)


class IssuerBook(Book):
    """`lead` sets the fenced store of the newest term."""

    def __init__(self, store: Store, api_version: str) -> None:
        self._store = store
        self._api_version = api_version
        self._fenced: FencedStore | None = None

    def lead(self, fenced: FencedStore) -> None:
        self._fenced = fenced

    def leads(self) -> bool:
        return self._fenced is not None and self._fenced.leads

    async def look(self) -> None:
        await self._store.read(logins.find_credential_issuer)

    async def tell(self, strategy: Strategy) -> None:
        if self._fenced is None:
            raise NotLeaderError("another replica tells it")
        await self._fenced.run(logins.record_strategy, strategy, self._api_version, f"system:hub:{NAME}")


class OutdatedPods(Reconciler[str]):
    """Keys are pod names. Only the leader deletes."""

    def __init__(self, cluster: ClusterClient, shape: AgentDeploymentShape, leads: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._shape = shape
        self._leads = leads

    async def reconcile(self, key: str) -> timedelta | None:
        """Read the pod again and delete exactly that one. Raises MusterError."""
        if not self._leads():
            return None
        pod = await self._cluster.pod(key)
        if pod is None or not is_outdated(pod, self._shape):
            return None
        try:
            await self._cluster.remove_pod(pod)
        except NotFoundError:
            return None
        log.info("pod of an older cert agent removed", pod=key)
        return None
