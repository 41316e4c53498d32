"""One hollow cluster: in-memory objects behind a real API server on a real port with its own certificates."""

import base64
import errno
import re
import secrets
from ipaddress import ip_address
from typing import Any, Self

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from hollow import controlplane, kinds, objects
from hollow.access import ADMINISTRATOR, ByRoles, Identities, Tell
from hollow.certificates import ClusterAuthority, is_address
from hollow.executing import Executing
from hollow.faults import Faults
from hollow.illness import Illness
from hollow.issuing import TokenIssuer
from hollow.objects import ClusterShape
from hollow.storage import HollowStorage
from machinery.apiserver.http.health import HealthCheck
from machinery.apiserver.http.listener import Listening, serve
from machinery.apiserver.http.negotiation import ResponseForm
from machinery.apiserver.http.responses import error_answer
from machinery.apiserver.kinds.reviews import GROUP as AUTHORIZATION
from machinery.apiserver.kinds.reviews import access_reviews
from machinery.apiserver.kinds.tokens import GROUP as AUTHENTICATION
from machinery.apiserver.resource import ApiGroup
from machinery.apiserver.server import ApiServer
from machinery.apiserver.storage import GroupResource, Key
from machinery.errors import ForbiddenError, InvalidError, MusterError, UnavailableError
from machinery.identity import OPERATOR_GROUP
from machinery.runtime.clock import Clock, SystemClock
from machinery.runtime.tls import Material, server_context

LOOPBACK = "127.0.0.1"
AUTHORITY_PATH = "/hollow/authority"
"""POST replaces the cluster's CA and returns the new one, for the administrator only."""
_HOST_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class HollowCluster:
    """A cluster with the properties of `shape`, on `host` and `port` (0: a free port).

    It serves between `start` and `stop`, or inside of `async with`. After a restart it has the same port, certificates and
    objects. Set `faults` at any time to change its faults.
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
        tell: Tell = lambda _actor, _asked, _decision: None,
    ) -> None:
        """Raises InvalidError.

        `advertise`: name or address in the kubeconfig, by default `host`. `token`: the administrator's, by default random.
        `tell` is called with every authorization.
        """
        self.shape = shape
        self._clock = clock or SystemClock()
        self._host = host
        self._advertised = _checked(advertise or host)
        self._port = port
        self._token = token or secrets.token_urlsafe(24)
        authority = ClusterAuthority(shape.name, self._clock.now())
        self._files = {controlplane.CA_CERTIFICATE: authority.certificate, controlplane.CA_KEY: authority.key}
        serving = authority.serving(self._advertised)
        self._authority = authority.certificate
        self._administrator = authority.administrator()
        self._tls = server_context(Material(serving.certificate, serving.key, authority.certificate))
        self._storage = HollowStorage(shape, self._clock)
        self.tokens = TokenIssuer(lambda: self.url)
        self._authenticator = Identities(self._token, self.tokens.identified(self._storage, self._clock))
        self._tell = tell
        self._illness = Illness(self._authenticator)
        self._listening: Listening | None = None
        self._born = self._published = False

    @property
    def url(self) -> str:
        """The address of the API server, valid after the start."""
        host = f"[{self._advertised}]" if ":" in self._advertised else self._advertised
        return f"https://{host}:{self._port}"

    @property
    def faults(self) -> Faults:
        return self._illness.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._illness.switch(faults)

    def kubeconfig(self, *, token: bool = False) -> dict[str, Any]:
        """The administrator's kubeconfig, with a client certificate or with the bearer token."""
        user = (
            {"token": self._token}
            if token
            else {
                "client-certificate-data": _encoded(self._administrator.certificate),
                "client-key-data": _encoded(self._administrator.key),
            }
        )
        name = self.shape.name
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": name, "cluster": {"server": self.url, "certificate-authority-data": _encoded(self._authority)}}
            ],
            "users": [{"name": f"{name}-admin", "user": user}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": f"{name}-admin"}}],
            "current-context": name,
        }

    async def start(self) -> None:
        """Raises UnavailableError when it cannot listen, for example because the port is in use."""
        if not self._born:
            await self._populate()
            self._born = True
        application = self._api_server().application()
        executing = Executing(self._authenticator, self._pod, self._files)
        own = self._rotation, self.tokens.middleware(), executing.middleware()
        application.middlewares[:0] = (self._illness.middleware(), *own)
        try:
            self._listening = await serve(application, self._host, self._port, self._tls)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UnavailableError(f"{self._host}:{self._port} is in use: choose another --port") from error
            raise UnavailableError(f"cannot listen on {self._host}:{self._port}: {error.strerror or error}") from error
        self._port = self._listening.port
        if not self._published:
            self._published = True
            info = controlplane.cluster_info(self.url, self._authority)
            key = Key(controlplane.INFO_NAMESPACE, controlplane.INFO)
            await self._storage.create(kinds.CONFIG_MAP.key, key, info, ADMINISTRATOR)

    async def exchange_authority(self) -> None:
        """Replace the CA on the control plane's host, and restart the controller-manager, which then signs with it.

        The API server accepts client certificates of both CAs; its own serving certificate does not change.
        """
        authority = ClusterAuthority(self.shape.name, self._clock.now())
        self._tls.load_verify_locations(cadata=authority.certificate.decode("ascii"))
        self._files.update({controlplane.CA_CERTIFICATE: authority.certificate, controlplane.CA_KEY: authority.key})
        key = Key(controlplane.NAMESPACE, controlplane.manager_name(self.shape))
        await self._storage.update(kinds.POD.key, key, controlplane.restarted, ADMINISTRATOR)

    async def _pod(self, namespace: str, name: str) -> Any:
        return msgspec.json.decode((await self._storage.get(kinds.POD.key, Key(namespace, name))).document)

    @property
    def _rotation(self) -> Middleware:
        @web.middleware
        async def act(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path != AUTHORITY_PATH:
                return await handler(request)
            try:
                actor = await self._authenticator.authenticate(request)
                if OPERATOR_GROUP not in actor.groups or request.method != "POST":
                    raise ForbiddenError("only the administrator may exchange the CA, by POST")
            except MusterError as error:
                return error_answer(error, ResponseForm())
            await self.exchange_authority()
            return web.json_response({"authority": self._files[controlplane.CA_CERTIFICATE].decode("ascii")})

        return act

    async def stop(self) -> None:
        """End watches and hanging requests and close all connections. The objects stay."""
        if self._listening:
            listening, self._listening = self._listening, None
            self._illness.release()
            await listening.close()

    async def stalled(self) -> None:
        """Wait until a write of a secret stalls, by the faults."""
        await self._illness.stalled()

    def cut_watches(self) -> None:
        """Abort the connections of all open watches."""
        self._illness.cut_watches()

    async def forget_history(self) -> None:
        """Compact the whole history: earlier revisions and continue tokens get 410."""
        self._storage.compact(await self._storage.revision())

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _api_server(self) -> ApiServer:
        reviews = access_reviews(ByRoles(self._storage, lambda _actor, _asked, _decision: None))
        groups = tuple(
            ApiGroup(name, tuple(each for each in reviews if each.group == name)) for name in (AUTHENTICATION, AUTHORIZATION)
        )
        return ApiServer(
            (*self.tokens.groups(self._storage), *groups),
            self._storage,
            authenticator=self._authenticator,
            authorizer=ByRoles(self._storage, self._tell),
            clock=self._clock,
            version=objects.version(self.shape),
            checks=[HealthCheck("etcd", self._illness.probe, ("healthz", "livez"))],
        )

    async def _populate(self) -> None:
        now = self._clock.now()
        born: tuple[tuple[GroupResource, Any], ...] = (
            (kinds.NAMESPACE.key, objects.namespaces()),
            (kinds.NODE.key, objects.nodes(self.shape, now)),
            (kinds.CLUSTER_CLAIM.key, objects.claims(self.shape)),
        )
        for resource, documents in born:
            for document in documents:
                key = Key("", document["metadata"]["name"])
                await self._storage.create(resource, key, document, ADMINISTRATOR)
        if self.shape.nodes:
            pod = controlplane.manager_pod(self.shape)
            await self._storage.create(kinds.POD.key, Key(controlplane.NAMESPACE, pod["metadata"]["name"]), pod, ADMINISTRATOR)


def _checked(host: str) -> str:
    """`host` if clients can connect to it. Raises InvalidError."""
    if is_address(host):
        if ip_address(host).is_unspecified:
            raise InvalidError(f"{host} is no address to connect to: name one with --advertise")
    elif not _HOST_NAME.fullmatch(host):
        raise InvalidError(f'"{host[:80]}" is neither an address nor a host name')
    return host


def _encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()
