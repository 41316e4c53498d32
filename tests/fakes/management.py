"""A management cluster in memory, and its aggregation layer: a proxy that hands requests on in its users' names."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Self

import aiohttp
from aiohttp import web

from machinery.apiserver.access import Attributes, Decision
from machinery.apiserver.authn.chain import Identity, TokenAuthenticator
from machinery.apiserver.authz.rbac import HeldRules
from machinery.apiserver.http.listener import Listening, serve
from machinery.apiserver.kinds.core import CONFIG_MAP
from machinery.apiserver.kinds.reviews import access_reviews
from machinery.apiserver.kinds.tokens import token_review
from machinery.apiserver.resource import ApiGroup, Resource
from machinery.apiserver.server import ApiServer
from machinery.apiserver.storage import Actor
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.errors import NotFoundError
from machinery.meta.objects import Key
from machinery.runtime.clock import SystemClock
from machinery.runtime.tls import client_context
from tests.checks import present
from tests.fakes.authority import OtherCA
from tests.fakes.open_access import AllowEverything, EveryoneIsAdmin
from tests.fakes.scripted_apiserver import kubeconfig

ADMIN = Actor("admin")
API_SERVICE = Resource(
    group="apiregistration.k8s.io",
    version="v1",
    name="apiservices",
    kind="APIService",
    custom=False,
    schema={"type": "object", "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}},
)
EXTENSION = Key("kube-system", "extension-apiserver-authentication")


class _Noting(AllowEverything):
    """Notes what passes."""

    def __init__(self, requests: list[tuple[str, str]]) -> None:
        self._requests = requests

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        self._requests.append((attributes.verb, attributes.path))
        return await super().authorize(actor, attributes)


class ManagementInMemory(TokenAuthenticator):
    """`users` by token, `may` by user and verb; both can be changed at any time."""

    def __init__(self) -> None:
        self.users = {"ann-token": Actor("ann", ("dev",)), "bob-token": Actor("bob")}
        self.may: set[tuple[str, str]] = {("ann", "list"), ("ann", "get"), ("bob", "get")}
        self.asked: list[tuple[str, Attributes]] = []
        self.requests: list[tuple[str, str]] = []
        """Verb and path of everything that was asked of it."""
        self.proxy_ca = OtherCA("front-proxy-ca")
        self.storage = MemoryStorage()
        self._stack = AsyncExitStack()
        self._listening: Listening | None = None

    async def __aenter__(self) -> Self:
        reviews = (token_review(self, ("https://kubernetes.default.svc",)), *access_reviews(self))
        resources = (CONFIG_MAP, API_SERVICE, *reviews)
        groups = [
            ApiGroup(name, tuple(each for each in resources if each.group == name)) for name in {r.group for r in resources}
        ]
        server = ApiServer(
            groups,
            self.storage,
            authenticator=EveryoneIsAdmin(),
            authorizer=_Noting(self.requests),
            clock=SystemClock(),
            version={},
        )
        self._listening = await serve(server.application(), "127.0.0.1", 0)
        self._stack.push_async_callback(self._listening.close)
        await self.say(self.proxy_ca)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{present(self._listening).port}"

    @property
    def kubeconfig(self) -> Mapping[str, Any]:
        return kubeconfig(self.url)

    async def stop(self) -> None:
        """Nobody reaches it any more."""
        await present(self._listening).close()

    async def say(self, proxy_ca: OtherCA) -> None:
        """Names the CA of its front proxy."""
        self.proxy_ca = proxy_ca
        data = {
            "requestheader-allowed-names": '["front-proxy-client"]',
            "requestheader-client-ca-file": proxy_ca.certificate.decode(),
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-username-headers": '["X-Remote-User"]',
        }
        metadata = {"name": EXTENSION.name, "namespace": EXTENSION.namespace}
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        try:
            await self.storage.update(CONFIG_MAP.key, EXTENSION, lambda old: {**old, "data": data}, ADMIN)
        except NotFoundError:
            await self.storage.create(CONFIG_MAP.key, EXTENSION, document, ADMIN)

    async def add_api_service(self, name: str, service: Mapping[str, str]) -> None:
        spec = {"group": "g", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1, "service": dict(service)}
        document = {"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": name}}
        await self.storage.create(API_SERVICE.key, Key("", name), {**document, "spec": spec}, ADMIN)

    async def api_service(self, name: str) -> Mapping[str, Any]:
        stored = await self.storage.get(API_SERVICE.key, Key("", name))
        return stored.document

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        actor = self.users.get(token)
        return None if actor is None else Identity(actor, audiences=tuple(audiences))

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        self.asked.append((actor.user, attributes))
        return Decision((actor.user, attributes.verb) in self.may)

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        del actor, namespace
        return HeldRules((), ())


@asynccontextmanager
async def aggregating_proxy(management: ManagementInMemory, backend: str, trust: bytes) -> AsyncIterator[str]:
    """The URL of a proxy. What comes below `/as/<token>/` goes to `backend`, in the name of whom the token belongs to."""

    async def forward(request: web.Request) -> web.Response:
        actor = management.users.get(request.match_info["token"])
        if actor is None:
            return web.Response(status=401)
        kept = {name: request.headers[name] for name in ("Accept", "Content-Type") if name in request.headers}
        headers = [*kept.items(), ("X-Remote-User", actor.user), *(("X-Remote-Group", group) for group in actor.groups)]
        place = backend + request.path_qs.removeprefix(f"/as/{request.match_info['token']}")
        async with session.request(request.method, place, data=await request.read(), headers=headers) as answer:
            shown = {"Content-Type": answer.headers["Content-Type"]}
            return web.Response(body=await answer.read(), status=answer.status, headers=shown)

    shown = management.proxy_ca.issue("front-proxy-client")
    connector = aiohttp.TCPConnector(ssl=client_context(trust, shown.chain, shown.key))
    app = web.Application()
    app.router.add_route("*", "/as/{token}/{path:.*}", forward)
    async with aiohttp.ClientSession(connector=connector) as session:
        listening = await serve(app, "127.0.0.1", 0)
        yield f"http://127.0.0.1:{listening.port}"
        await listening.close()
