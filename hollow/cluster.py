"""Hollow clusters: objects in memory, served by a real API server on a real port, with its own certificates."""

import errno
import os
import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Self

import yaml
from aiohttp import web

from hollow import kinds, objects
from hollow.access import (
    ADMINISTRATOR,
    AdministratorToken,
    ByRoles,
    CertificateUsers,
    ClusterAuthority,
    OnDecision,
    TokenIssuer,
    is_address,
)
from hollow.executing import exec_filter
from hollow.faults import ADMIN_PATH, HEALTHY, FaultInjection, Faults
from hollow.objects import KUBERNETES_VERSION, ClusterShape
from hollow.storage import HollowStorage
from machinery.apiserver.authn.chain import BearerTokens, Chain, TokenUnion
from machinery.apiserver.http.filters import Filters, Incoming
from machinery.apiserver.http.listener import Listening, serve
from machinery.apiserver.kinds.core import CONFIG_MAP
from machinery.apiserver.kinds.rbac import CLUSTER_ROLE
from machinery.apiserver.kinds.reviews import GROUP as AUTHORIZATION, access_reviews
from machinery.apiserver.kinds.tokens import GROUP as AUTHENTICATION
from machinery.apiserver.resource import ApiGroup
from machinery.apiserver.server import ApiServer
from machinery.apiserver.storage import GroupResource
from machinery.client.kubeconfig_documents import encoded, with_one_context
from machinery.errors import ForbiddenError, InvalidError, UnavailableError
from machinery.identity import cluster_name
from machinery.meta.objects import Key
from machinery.runtime.clock import Clock, SystemClock
from machinery.runtime.health import LIVENESS, HealthCheck
from machinery.runtime.tls import Material, server_context

LOOPBACK = "127.0.0.1"
AUTHORITY_PATH = "/hollow/authority"
"""A POST to this path replaces the cluster's CA and returns the new one. Only the administrator may do this."""
_HOST_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class HollowCluster:
    """A cluster with the properties of `shape`, on `host` and `port` (0: a free port).

    The cluster serves from `start` to `stop`, or in an `async with` block. After a restart it has the same port, certificates
    and objects. Set `faults` at any time to change its faults.
    """

    def __init__(
        self,
        shape: ClusterShape,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        advertise: str = "",
        token: str = "",
        clock: Clock | None = None,
        on_decision: OnDecision | None = None,
    ) -> None:
        """Raises InvalidError.

        `advertise`: name or address in the kubeconfig; default: `host`. `token`: the administrator's token; default: random.
        `on_decision`: called after every authorization.
        """
        self.shape = shape
        self._clock = clock or SystemClock()
        self._host = host
        self._advertised = _checked(advertise or host)
        self._port = port
        self._token = token or secrets.token_urlsafe(24)
        authority = ClusterAuthority(shape.name, self._clock.now())
        self._files = {objects.CA_CERTIFICATE: authority.certificate, objects.CA_KEY: authority.key}
        self._authority = authority.certificate
        self._administrator = authority.administrator()
        self._tls = server_context(Material(*authority.serving(self._advertised), authority.certificate))
        self._storage = HollowStorage(shape, self._clock)
        self._tokens = TokenIssuer(lambda: self.url, self._storage, self._clock)
        self._roles = ByRoles(self._storage, on_decision) if on_decision else ByRoles(self._storage)
        self._injection = FaultInjection()
        self._listening: Listening | None = None
        self._populated = self._published = False

    @property
    def url(self) -> str:
        """The URL of the API server. It is known after the start."""
        host = f"[{self._advertised}]" if ":" in self._advertised else self._advertised
        return f"https://{host}:{self._port}"

    @property
    def faults(self) -> Faults:
        return self._injection.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._injection.switch(faults)

    def kubeconfig(self, *, token: bool = False) -> dict[str, Any]:
        name, (chain, key) = self.shape.name, self._administrator
        certificate = {"client-certificate-data": encoded(chain), "client-key-data": encoded(key)}
        cluster = {"server": self.url, "certificate-authority-data": encoded(self._authority)}
        user = {"token": self._token} if token else certificate
        return with_one_context(name, cluster, user, user_name=f"{name}-admin")

    async def start(self) -> None:
        """Start the server. Raises UnavailableError if it cannot listen, for example because the port is in use."""
        if not self._populated:
            await self._populate()
            self._populated = True
        application = self._api_server().application()
        application.middlewares.insert(0, self._injection.apply)
        try:
            self._listening = await serve(application, self._host, self._port, self._tls)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UnavailableError(f"{self._host}:{self._port} is in use: choose another --port") from error
            raise UnavailableError(f"cannot listen on {self._host}:{self._port}: {error.strerror or error}") from error
        self._port = self._listening.port
        if not self._published:
            self._published = True
            info = objects.cluster_info(self.url, self._authority)
            key = Key(objects.INFO_NAMESPACE, objects.INFO)
            await self._storage.create(CONFIG_MAP.key, key, info, ADMINISTRATOR)

    async def exchange_authority(self) -> None:
        """Replace the CA files on the control plane's host. Also restart the controller-manager, which then uses the new CA.

        The API server accepts client certificates of both CAs. Its serving certificate does not change.
        """
        authority = ClusterAuthority(self.shape.name, self._clock.now())
        self._tls.load_verify_locations(cadata=authority.certificate.decode("ascii"))
        self._files.update({objects.CA_CERTIFICATE: authority.certificate, objects.CA_KEY: authority.key})
        key = Key(objects.MANAGER_NAMESPACE, objects.manager_name(self.shape))
        await self._storage.update(kinds.POD.key, key, objects.restarted, ADMINISTRATOR)

    async def _pod(self, namespace: str, name: str) -> Any:
        return (await self._storage.get(kinds.POD.key, Key(namespace, name))).document

    async def _authority_page(self, incoming: Incoming) -> web.Response:
        if incoming.request.method != "POST":
            raise ForbiddenError("only the administrator may exchange the CA, by POST")
        await self.exchange_authority()
        return web.json_response({"authority": self._files[objects.CA_CERTIFICATE].decode("ascii")})

    async def stop(self) -> None:
        """End watches and hanging requests, and close all connections. The objects stay in memory."""
        if self._listening:
            listening, self._listening = self._listening, None
            self._injection.release()
            await listening.close()

    async def stalled(self) -> None:
        """Wait until a write of a secret stalls because of a fault."""
        await self._injection.stalled()

    def cut_watches(self) -> None:
        self._injection.cut_watches()

    async def forget_history(self) -> None:
        """Compact the whole history. Requests with earlier revisions or continue tokens then get 410."""
        self._storage.compact(await self._storage.revision())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _api_server(self) -> ApiServer:
        reviews = access_reviews(ByRoles(self._storage))
        groups = tuple(
            ApiGroup(name, tuple(each for each in reviews if each.group == name)) for name in (AUTHENTICATION, AUTHORIZATION)
        )
        tokens = TokenUnion(AdministratorToken(self._token), self._tokens)
        own_pages = {ADMIN_PATH: self._injection.page, AUTHORITY_PATH: self._authority_page}
        return ApiServer(
            (*self._tokens.groups(), *groups),
            self._storage,
            authenticator=Chain(CertificateUsers(), BearerTokens(tokens)),
            authorizer=self._roles,
            clock=self._clock,
            version=objects.version(self.shape),
            checks=[HealthCheck("etcd", self._injection.probe, LIVENESS)],
            filters=Filters(limits=(exec_filter(self._pod, self._files),)),
            pages={**self._tokens.pages(), **own_pages},
        )

    async def _populate(self) -> None:
        now = self._clock.now()
        documents: list[tuple[GroupResource, Any]] = [
            (CLUSTER_ROLE.key, objects.cluster_admin()),
            *((kinds.NAMESPACE.key, document) for document in objects.namespaces()),
            *((kinds.NODE.key, objects.node(self.shape, index, now)) for index in range(self.shape.nodes)),
            *((kinds.CLUSTER_CLAIM.key, document) for document in objects.claims(self.shape)),
            *([(kinds.POD.key, objects.manager_pod(self.shape))] if self.shape.nodes else []),
        ]
        for resource, document in documents:
            metadata = document["metadata"]
            await self._storage.create(resource, Key(metadata.get("namespace", ""), metadata["name"]), document, ADMINISTRATOR)


def _checked(host: str) -> str:
    """Return `host` if clients can connect to this address. Raises InvalidError."""
    if is_address(host):
        if ip_address(host).is_unspecified:
            raise InvalidError(f"{host} is not an address to connect to: set one with --advertise")
    elif not _HOST_NAME.fullmatch(host):
        raise InvalidError(f'"{host[:80]}" is neither an address nor a host name')
    return host


PLACEHOLDER = "{name}"
LAST_PORT = 65535
_VERSION = re.compile(r"v\d+\.\d+\.\d+([-+][-+.0-9A-Za-z]+)?")


@dataclass(frozen=True, slots=True)
class HollowFleet:
    """The clusters to serve, on consecutive ports from `port` (0: any free ports)."""

    shapes: tuple[ClusterShape, ...]
    kubeconfig_out: str
    """Path of the kubeconfigs. `{name}` stands for the name of the cluster."""
    host: str = "127.0.0.1"
    port: int = 0
    advertise: str = ""
    faults: Faults = HEALTHY

    def __post_init__(self) -> None:
        """Raises InvalidError for a fleet that cannot be served."""
        for shape in self.shapes:
            cluster_name(shape.name)
            if not _VERSION.fullmatch(shape.version):
                raise InvalidError(f'"{shape.version[:80]}" is not a version of Kubernetes: use one like {KUBERNETES_VERSION}')
        if self.port + len(self.shapes) - 1 > LAST_PORT:
            raise InvalidError(f"{len(self.shapes)} clusters do not fit between port {self.port} and {LAST_PORT}")
        if len(self.shapes) > 1 and PLACEHOLDER not in self.kubeconfig_out:
            raise InvalidError(f"{len(self.shapes)} clusters need as many kubeconfigs: put {PLACEHOLDER} into the file's name")

    def kubeconfig_path(self, shape: ClusterShape) -> Path:
        return Path(self.kubeconfig_out.replace(PLACEHOLDER, shape.name))


def names(name: str, count: int) -> tuple[str, ...]:
    """Return the names of the clusters: `name` for one cluster; `name-0`, `name-1`, ... for several."""
    return (name,) if count == 1 else tuple(f"{name}-{index}" for index in range(count))


@asynccontextmanager
async def serve_fleet(fleet: HollowFleet) -> AsyncIterator[Sequence[HollowCluster]]:
    """Serve the clusters during the block. Write each kubeconfig when its cluster answers.

    Raises UnavailableError for a port in use, and OSError for a file that cannot be written.
    """
    async with AsyncExitStack() as stack:
        clusters = []
        for index, shape in enumerate(fleet.shapes):
            port = fleet.port + index if fleet.port else 0
            cluster = HollowCluster(shape, host=fleet.host, port=port, advertise=fleet.advertise)
            cluster.faults = fleet.faults
            await stack.enter_async_context(cluster)
            write_kubeconfig(cluster, fleet.kubeconfig_path(shape))
            clusters.append(cluster)
        yield clusters


def write_kubeconfig(cluster: HollowCluster, path: Path) -> None:
    """Write the administrator's kubeconfig atomically with mode 0600."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as file:  # created with mode 0600
        yaml.safe_dump(cluster.kubeconfig(), file, sort_keys=False)
    os.replace(file.name, path)  # noqa: PTH105 - the name is a string
