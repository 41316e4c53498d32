"""Keeps the cert agent's Deployment, fetches the cluster's CA through its pod, and reports the result.

Every replica runs this controller and fetches the key from the pod of this one Deployment. Only the leader writes the
Deployment and the strategy in the CredentialIssuer. An error in writing the Deployment is reported only at the end, because an
existing Deployment may have a usable pod. A fetched key stays in use after later failures.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from hub.api.credentialissuers import ERROR, KUBE_CLUSTER_SIGNING, SUCCESS, Strategy
from hub.api.meta import document as doc
from hub.election.fence import FencedStore
from hub.extensions.kube_cert_agent import cluster_client as pods, deployment
from hub.extensions.kube_cert_agent.authority import KubernetesIssuer
from hub.extensions.kube_cert_agent.cluster_client import ClusterClient, is_outdated, parse_cluster_info, parse_printed
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape
from hub.ports import Store
from hub.registry import authenticators as logins
from machinery.errors import MusterError, NotFoundError, NotLeaderError, UnavailableError
from machinery.meta.objects import Document
from machinery.runtime.clock import Clock
from machinery.runtime.controller import Reconciler

FETCHED_KEY = "FetchedKey"
COULD_NOT_FETCH_KEY = "CouldNotFetchKey"
COULD_NOT_GET_CLUSTER_INFO = "CouldNotGetClusterInfo"
KEY = "agent"
REFETCH_INTERVAL = timedelta(minutes=15)
"""Shortest time between two fetches of the key from the same pod."""
RESYNC = timedelta(minutes=3)
LOOK_AGAIN = timedelta(seconds=5)
"""Retry interval of a replica that waits until the leader has written the Deployment."""
FETCHED = "key was fetched successfully"
MANAGED = "; this is expected on a managed cluster, whose control plane has no visible pods"

log = structlog.get_logger(__name__)


class StatusWriter:
    """Writes the strategy (state of the cert agent) into the CredentialIssuer. All methods may raise MusterError."""

    def __init__(self, store: Store, api_version: str) -> None:
        self._store = store
        self._api_version = api_version
        self._fenced: FencedStore | None = None

    def lead(self, fenced: FencedStore) -> None:
        """Use the fenced store of this replica's newest term."""
        self._fenced = fenced

    def leads(self) -> bool:
        return self._fenced is not None and self._fenced.leads

    async def check(self) -> None:
        """Check that the CredentialIssuer can be read."""
        await self._store.read(logins.find_credential_issuer)

    async def write(self, strategy: Strategy) -> None:
        """Write the strategy. Also raises NotLeaderError."""
        if self._fenced is None:
            raise NotLeaderError("only the leader writes the status")
        await self._fenced.run(logins.record_strategy, strategy, self._api_version, "system:hub:kube-cert-agent")


class StepError(Exception):
    """A failed step. `reason`: for the strategy. `cause`: the error to raise for a retry."""

    def __init__(self, cause: MusterError, reason: str = COULD_NOT_FETCH_KEY) -> None:
        super().__init__(cause.message)
        self.reason = reason
        self.cause = cause


def failed(what: str, error: MusterError) -> MusterError:
    """Return the error with the failed action before its message."""
    return type(error)(f"{what}: {error.message}")


@contextmanager
def step(what: str, reason: str = COULD_NOT_FETCH_KEY) -> Iterator[None]:
    """Convert a MusterError of the block to a StepError that names the failed action."""
    try:
        yield
    except MusterError as error:
        raise StepError(failed(what, error), reason) from error


@dataclass(eq=False)
class KubeCertAgent(Reconciler[str]):
    """Keeps the Deployment, fetches the CA, reports the result. The queue has one key. `server` replaces cluster-info's URL."""

    cluster: ClusterClient
    shape: AgentDeploymentShape
    issuer: KubernetesIssuer
    status: StatusWriter
    clock: Clock
    server: str = ""
    _loaded: tuple[str, str] = field(default=("", ""), init=False)
    """The source of the loaded key: uid of the agent's pod, and instance of the controller-manager."""
    _fetch_at: float = field(default=0.0, init=False)
    _reason: str = field(default="", init=False)
    _fetched: int = field(default=0, init=False)

    async def reconcile(self, key: str) -> timedelta | None:
        """Fetch the CA and, on the leader, report the result. Raises an error of either step, so that the queue retries."""
        del key
        await self.status.check()
        failure: MusterError | None = None
        try:
            server, authority = await self._fetch()
            strategy = Strategy(
                KUBE_CLUSTER_SIGNING, SUCCESS, FETCHED_KEY, FETCHED, self.server or server, authority, self.issuer.signer
            )
        except StepError as error:
            failure = error.cause
            strategy = Strategy(KUBE_CLUSTER_SIGNING, ERROR, error.reason, failure.message)
        self._reason = strategy.reason
        if self.status.leads():
            try:
                await self.status.write(strategy)
            except MusterError as error:
                unreported = failed("could not update the CredentialIssuer", error)
                raise (
                    unreported if failure is None else UnavailableError(f"[{failure.message}, {unreported.message}]")
                ) from error
        elif isinstance(failure, NotLeaderError):
            return LOOK_AGAIN
        if failure is not None:
            raise failure
        return RESYNC

    def snapshot(self) -> Mapping[str, object]:
        """Return the state for the debug report, without secrets, and the number of keys read from a pod since the start."""
        return {"reason": self._reason, "signer": self.issuer.signer, "keys fetched": self._fetched}

    async def _fetch(self) -> tuple[str, str]:
        """Fetch everything, and return URL and CA of the cluster. Raises StepError."""
        with step("could not look for a controller-manager pod"):
            managers = await self.cluster.managers()
            running = pods.running(managers)
            # a single candidate needs no nodes
            manager = pods.preferred(running, await self.cluster.nodes() if len(running) > 1 else ())
        if manager is None:
            hint = "" if managers else MANAGED
            found = f"could not find a healthy kube-controller-manager pod ({pods.candidates(managers)}){hint}"
            raise StepError(NotFoundError(found))
        unwritten: StepError | None = None
        try:
            with step("could not ensure the agent's Deployment"):
                await self._write_deployment(manager)
        except StepError as error:
            unwritten = error
        try:
            agent = await self._agent()
            with step("could not get the cluster's address", COULD_NOT_GET_CLUSTER_INFO):
                info = parse_cluster_info(await self.cluster.cluster_info())
            await self._load(agent, manager)
        except StepError as error:
            raise error if unwritten is None else StepError(unwritten.cause, error.reason) from error
        if unwritten is not None:
            raise unwritten
        return info

    async def _write_deployment(self, manager: Document) -> None:
        """Write the Deployment if necessary. Raises MusterError."""
        wanted = deployment.deployment(self.shape, manager, await self.cluster.owner())
        existing = await self.cluster.deployment()
        if existing is not None and deployment.is_as_wanted(existing, wanted):
            return
        if not self.status.leads():
            raise NotLeaderError("only the leader writes the agent's Deployment")
        name = f"{self.shape.namespace}/{self.shape.name}"
        if existing is None:
            await self.cluster.create(wanted)
            log.info("cert agent's Deployment created", deployment=name)
        elif doc.mapping(existing, "spec", "selector") != doc.mapping(wanted, "spec", "selector"):
            await self.cluster.remove(existing)
            await self.cluster.create(wanted)
            log.info("cert agent's Deployment replaced: its selector was outdated", deployment=name)
        else:
            await self.cluster.replace(deployment.updated(existing, wanted))
            log.info("cert agent's Deployment updated", deployment=name)

    async def _agent(self) -> Document:
        with step("could not look for an agent pod"):
            agents = await self.cluster.agents()
        if not (running := pods.running(agents)):
            raise StepError(NotFoundError(f"could not find a healthy agent pod ({pods.candidates(agents)})"))
        return running[0]

    async def _load(self, agent: Document, manager: Document) -> None:
        name, now = doc.name(agent), self.clock.monotonic()
        source = str(doc.mapping(agent, "metadata").get("uid") or ""), pods.instance(manager)
        if self._loaded == source and now < self._fetch_at:
            return
        with step(f"could not load the key from agent pod {self.shape.namespace}/{name}"):
            self.issuer.set_authority(*parse_printed(await self.cluster.printed(name), name))
        self._loaded, self._fetch_at = source, now + REFETCH_INTERVAL.total_seconds()
        self._fetched += 1
        log.info("CA of the Kubernetes cluster loaded", pod=name, signer=self.issuer.signer)


class OutdatedPods(Reconciler[str]):
    """Deletes outdated pods. Keys are pod names. Only the leader deletes."""

    def __init__(self, cluster: ClusterClient, shape: AgentDeploymentShape, leads: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._shape = shape
        self._leads = leads

    async def reconcile(self, key: str) -> timedelta | None:
        """Read the pod again and delete exactly this pod. Raises MusterError."""
        pod = await self._cluster.pod(key) if self._leads() else None
        if pod is not None and is_outdated(pod, self._shape):
            with suppress(NotFoundError):
                await self._cluster.remove_pod(pod)
                log.info("outdated pod of the cert agent removed", pod=key)
        return None
