"""Adapter of the port `Cluster`: the managed cluster over its Kubernetes API. `spoke.domain` contains the rules of reports.

The health check queries the same paths as OCM's agent. In hosted mode another program renews the credential in the kubeconfig
of the managed cluster. So the agent reloads a changed kubeconfig file, provided that the file still names the same cluster.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import structlog

from machinery.client.reflector import Reflector, mirrored
from machinery.client.rest import KubeClient, Object, RestResource
from machinery.errors import ForbiddenError, InvalidError, MusterError, NotFoundError
from machinery.meta.timestamps import parse_time
from machinery.observability.logs import LogOnce
from machinery.pki import unverified_claims
from spoke.domain.report import PROBE_TIMEOUT, WANTED, NodeResources, ReportedClaim, merged_claims
from spoke.ports.cluster import ApiServerHealth, Attest, Cluster
from spoke.settings.fields import FeatureGates

log = structlog.get_logger(__name__)


NODES = RestResource("", "v1", "nodes")
NAMESPACES = RestResource("", "v1", "namespaces")
LEASES = RestResource("coordination.k8s.io", "v1", "leases")
CLAIMS = RestResource("cluster.open-cluster-management.io", "v1alpha1", "clusterclaims")
PROPERTIES = RestResource("about.k8s.io", "v1alpha1", "clusterproperties")

GATES = FeatureGates()
COALESCE = timedelta(milliseconds=200)
"""Changes within this time are reported together."""
_REPORTED_CLAIMS = {"labelSelector": "!open-cluster-management.io/spoke-only"}
_NOT_SERVED = frozenset({403, 404})
_SHOWN = 256


class KubeCluster(Cluster):
    """A cluster, called through `client`. All calls raise the errors of `machinery.errors`. Exception: `health` raises none."""

    def __init__(
        self,
        client: KubeClient,
        *,
        health_timeout: timedelta = PROBE_TIMEOUT,
        coalesce: timedelta = COALESCE,
        gates: FeatureGates = GATES,
    ) -> None:
        self._client = client
        sources = ((CLAIMS, gates.cluster_claim), (PROPERTIES, gates.cluster_property))
        self._claim_resources = [resource for resource, enabled in sources if enabled]
        self._health_timeout = health_timeout
        self._coalesce = coalesce

    async def uid(self) -> str:
        namespace = await self._client.get(NAMESPACES.path("kube-system"))
        return str(namespace["metadata"]["uid"])

    async def version(self) -> str:
        return str((await self._client.get("/version")).get("gitVersion") or "")

    async def health(self) -> ApiServerHealth:
        try:
            answer = await self._client.raw("GET", "/livez", accept="*/*", within=self._health_timeout)
            if answer.status in _NOT_SERVED:
                answer = await self._client.raw("GET", "/healthz", accept="*/*", within=self._health_timeout)
        except MusterError as error:
            return ApiServerHealth(ok=False, status_code=None, detail=error.message)
        body = " ".join(answer.body.decode(errors="replace").split())[:_SHOWN]
        return ApiServerHealth(ok=answer.status == 200, status_code=answer.status, detail=body)  # noqa: PLR2004 - HTTP OK

    async def nodes(self) -> Sequence[NodeResources]:
        return [_node(item) async for page in self._client.pages(NODES.path()) for item in page.items]

    async def claims(self) -> Sequence[ReportedClaim]:
        """Return ClusterClaims and ClusterProperties, if their gates are on. A property overrides a claim of the same name."""
        return merged_claims([await self._claims_of(resource) for resource in self._claim_resources])

    async def _claims_of(self, resource: RestResource) -> Sequence[ReportedClaim]:
        try:
            return [_claim(item) async for page in self._client.pages(resource.path(), _REPORTED_CLAIMS) for item in page.items]
        except NotFoundError:
            return []

    async def labelled_namespaces(self, label: str) -> frozenset[str]:
        pages = self._client.pages(NAMESPACES.path(), {"labelSelector": f"{label}={WANTED}"})
        return frozenset([str(item["metadata"]["name"]) async for page in pages for item in page.items])

    async def namespace_exists(self, name: str) -> bool:
        try:
            return await self._client.find(NAMESPACES.path(name)) is not None
        except ForbiddenError:
            return True  # rights on a single namespace may not include reading the namespace itself

    async def label_namespace(self, name: str, label: str, value: str, *, create: bool) -> None:
        metadata = {"name": name, "labels": {label: value}}
        try:
            await self._client.patch(NAMESPACES.path(name), {"metadata": {"labels": {label: value}}})
        except NotFoundError:
            if create:
                await self._client.create(NAMESPACES.path(), {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    async def lease_renewed_at(self, namespace: str, name: str) -> datetime | None:
        lease = await self._client.find(LEASES.path(name, namespace=namespace))
        renewed = ((lease or {}).get("spec") or {}).get("renewTime")
        return parse_time(renewed) if renewed else None

    async def changes(self) -> AsyncIterator[str]:
        """Yield `nodes` or `claims` after the first list of that resource and after each change of its reported fields.

        Changes within COALESCE are yielded once. A node's heartbeat changes no reported field.
        """
        changed: dict[str, None] = {}
        wake = asyncio.Event()

        def note(kind: str) -> None:
            changed[kind] = None
            wake.set()

        claims = [
            Reflector(
                self._client,
                resource.path(),
                _claim,
                query=_REPORTED_CLAIMS,
                on_change=lambda _key, _value: note("claims"),
                on_failure=_claims_failed,
            )
            for resource in self._claim_resources
        ]
        nodes = Reflector(self._client, NODES.path(), _node, on_change=lambda _key, _value: note("nodes"))
        async with mirrored(nodes, *claims) as wait:
            while True:
                await wait(wake)
                await asyncio.sleep(self._coalesce.total_seconds())
                kinds = list(changed)
                changed.clear()
                wake.clear()
                for kind in kinds:
                    yield kind


def _claims_failed(error: MusterError) -> None:
    """Log the error; at debug level if the cluster does not have the ClusterClaim resource, because this is common."""
    level = log.debug if isinstance(error, NotFoundError) else log.warning
    level("cluster claims are not watched", reason=error.reason, error=error.message)


def _node(item: Object) -> NodeResources:
    status = item.get("status") or {}
    return NodeResources(
        name=str(item["metadata"]["name"]),
        capacity=_quantities(status.get("capacity")),
        allocatable=_quantities(status.get("allocatable")),
        schedulable=not (item.get("spec") or {}).get("unschedulable"),
    )


def _quantities(resources: Mapping[str, Any] | None) -> dict[str, str]:
    return {name: str(quantity) for name, quantity in (resources or {}).items()}


def _claim(item: Object) -> ReportedClaim:
    return ReportedClaim(name=str(item["metadata"]["name"]), value=str((item.get("spec") or {}).get("value") or ""))


ACCOUNTS = RestResource("", "v1", "serviceaccounts")
TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
TOKEN_LIFETIME = 600
"""Lifetime of a token in seconds: the shortest that Kubernetes issues."""
ACCOUNT_PREFIX = "system:serviceaccount:"
_HOW = "name a service account of the managed cluster with --attestation-service-account NAMESPACE/NAME"


class ServiceAccountAttest(Attest):
    """Attests with a token of a ServiceAccount.

    `account`: NAMESPACE/NAME; empty: the pod's own ServiceAccount. `own`: the file with the pod's token; None: the agent does
    not run in a pod of the managed cluster.
    """

    def __init__(self, client: KubeClient, account: str = "", own: Path | None = TOKEN) -> None:
        self._client = client
        self._account = account
        self._own = own

    async def token(self, audience: str) -> str:
        account = self._account or await asyncio.to_thread(self._own_account)
        namespace, _, name = account.partition("/")
        spec = {"audiences": [audience], "expirationSeconds": TOKEN_LIFETIME}
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        try:
            path = ACCOUNTS.path(name, namespace=namespace, subresource="token")
            answer = await self._client.create(path, asked)
        except (ForbiddenError, NotFoundError) as error:
            raise InvalidError(
                f"the hub demands a token of this cluster, and none of service account {account} can be had ({error.message}): "
                "let the agent create serviceaccounts/token of it (the chart's attestation.enabled), or " + _HOW
            ) from error
        except MusterError as error:
            raise type(error)(f"the hub demands a token of this cluster, which cannot be had now: {error.message}") from error
        return str((answer.get("status") or {}).get("token") or "")

    def _own_account(self) -> str:
        try:
            claims = unverified_claims(self._own.read_text().strip()) if self._own is not None else None
        except (OSError, UnicodeDecodeError):
            claims = None
        subject = str((claims or {}).get("sub") or "")
        namespace, _, name = subject.removeprefix(ACCOUNT_PREFIX).partition(":")
        if not subject.startswith(ACCOUNT_PREFIX) or not name:
            raise InvalidError(f"the hub demands a token of this cluster: {_HOW}")
        return f"{namespace}/{name}"


KUBECONFIG_POLL = timedelta(seconds=10)


class FollowedKubeconfig:
    """Reloads the kubeconfig of one client from its file while `run` runs."""

    def __init__(self, client: KubeClient, path: Path) -> None:
        self._client = client
        self._path = path
        self._seen = _signature(path), _read_file(path)
        self._uid = ""
        self._log = LogOnce(log)

    async def run(self, every: timedelta = KUBECONFIG_POLL) -> None:
        """Poll the kubeconfig file at the interval `every` until cancelled."""
        while True:
            await asyncio.sleep(every.total_seconds())
            signature, known = _signature(self._path), self._seen
            if signature == known[0]:
                continue  # reads no file, because the agent must use little CPU while idle
            content = await asyncio.to_thread(_read_file, self._path)
            if content == known[1] or await self.reload():
                self._seen = signature, content

    async def reload(self) -> bool:
        """Try to load the file. Return whether the file is settled: loaded, or refused because it names another cluster.

        If the file is unusable, or its cluster unreachable, nothing changes and the result is False.
        """
        try:
            new = await KubeClient.from_file(self._path)
        except InvalidError as error:
            self._warn("kubeconfig.unusable", error.message, "the previous kubeconfig stays in use")
            return False
        try:
            before = await self._known_uid()
            found = await KubeCluster(new).uid()
        except MusterError as error:
            await new.close()
            self._warn("kubeconfig.not_reached", error.message, "trying again; the previous kubeconfig stays in use")
            return False
        if before not in ("", found):
            await new.close()
            why = "it names another cluster: its kube-system namespace has another uid"
            self._warn("kubeconfig.another_cluster", why, "the agent keeps its cluster; another cluster needs another agent")
            return True
        await self._client.turn_to(new)
        self._uid = found
        self._log.reset()
        log.info("kubeconfig.replaced", file=str(self._path))
        return True

    async def _known_uid(self) -> str:
        """The UID of the present cluster; empty if the present credential can no longer read it."""
        if not self._uid:
            try:
                self._uid = await KubeCluster(self._client).uid()
            except MusterError:
                return ""
        return self._uid

    def _warn(self, event: str, why: str, following: str) -> None:
        self._log.warning(event, why, file=str(self._path), next=following)


def _signature(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
