"""The cluster that a hub runs in, in memory, and as an API server with a front proxy."""

import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
from aiohttp import web

from hub.api.credentialissuers import Strategy
from hub.extensions.kube_cert_agent.cluster_client import ClusterClient, is_outdated
from hub.extensions.kube_cert_agent.controller import StatusWriter
from hub.extensions.kube_cert_agent.deployment import AgentDeploymentShape
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
from machinery.errors import MusterError, NotFoundError, NotLeaderError
from machinery.meta.objects import Document, Key
from machinery.runtime.clock import SystemClock
from machinery.runtime.tls import client_context
from tests.checks import present
from tests.fakes.authority import OtherCA
from tests.fakes.identity import AllowEverything, EveryoneIsAdmin
from tests.fakes.scripted_apiserver import kubeconfig

SHAPE = AgentDeploymentShape(
    namespace="muster",
    name="hub-kube-cert-agent",
    image="muster/hub:test",
    service_account="hub-kube-cert-agent",
    labels={"extra": "yes", "app": "hub"},
)
MOMENT = "2026-11-22T07:00:{:02d}Z"
FLAGS = ("--cluster-signing-cert-file=/pki/ca.crt", "--cluster-signing-key-file", "/pki/ca.key")


def pod(name: str, *, made: int = 0, phase: str = "Running", node: str = "", labels: Mapping[str, str] | None = None) -> Any:
    """`made`: seconds after a moment."""
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "7", "labels": dict(labels or {})}
    metadata["creationTimestamp"] = MOMENT.format(made)
    spec: dict[str, Any] = {"nodeName": node} if node else {}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": phase}}


def manager(name: str = "kcm", *, flags: Sequence[str] = FLAGS, **how: Any) -> Any:
    """A controller-manager's pod as kubeadm makes it."""
    found = pod(name, labels={"component": "kube-controller-manager"}, **how)
    mounts = [{"name": "pki", "mountPath": "/pki", "readOnly": True}, {"name": "flex", "mountPath": "/flex"}]
    container = {"name": "kcm", "command": ["kube-controller-manager", "--v=2"], "args": list(flags), "volumeMounts": mounts}
    volumes = [
        {"name": "pki", "hostPath": {"path": "/etc/kubernetes/pki", "type": "DirectoryOrCreate"}},
        {"name": "flex", "hostPath": {"path": "/usr/libexec", "type": ""}},
    ]
    shape = {"hostNetwork": True, "tolerations": [{"operator": "Exists"}], "nodeSelector": {"role": "control-plane"}}
    found["spec"] |= {"containers": [container], "volumes": volumes, **shape}
    return found


def node(name: str, *, takes_pods: bool = True) -> Any:
    spec = {} if takes_pods else {"unschedulable": True}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec}


def info(kubeconfig: str | None = None) -> Any:
    """cluster-info, as kubeadm writes it."""
    cluster = {"server": "https://kube.example:6443", "certificate-authority-data": base64.b64encode(b"CA").decode()}
    text = json.dumps({"clusters": [{"name": "", "cluster": cluster}]}) if kubeconfig is None else kubeconfig
    return {"apiVersion": "v1", "kind": "ConfigMap", "data": {"kubeconfig": text}}


def printed(certificate: bytes, key: bytes) -> bytes:
    """What the agent prints."""
    return json.dumps({"tls.crt": base64.b64encode(certificate).decode(), "tls.key": base64.b64encode(key).decode()}).encode()


@dataclass
class HostInMemory(ClusterClient):
    """`failures`: what a call raises, by its name. `done`: writes, in their order, with the object that they were for."""

    managing: list[Any] = field(default_factory=lambda: [manager()])
    there: list[Any] = field(default_factory=list)
    deployed: Document | None = None
    owned_by: Document | None = None
    agents_pods: list[Any] = field(default_factory=lambda: [pod("agent", labels=SHAPE.pod_labels)])
    info: Any = field(default_factory=info)
    output: bytes = b""
    failures: dict[str, MusterError] = field(default_factory=dict)
    done: list[tuple[str, Any]] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)

    def _called(self, name: str, written: Any = None) -> None:
        if written is not None:
            self.done.append((name, written))
        if name in self.failures:
            raise self.failures[name]

    async def managers(self) -> Sequence[Document]:
        self._called("managers")
        return self.managing

    async def nodes(self) -> Sequence[Document]:
        self._called("nodes")
        return self.there

    async def deployment(self) -> Document | None:
        self._called("deployment")
        return self.deployed

    async def owner(self) -> Document | None:
        self._called("owner")
        return self.owned_by

    async def create(self, deployment: dict[str, Any]) -> None:
        self._called("create", deployment)
        self.deployed = {**deployment, "metadata": {**deployment["metadata"], "uid": "new", "resourceVersion": "1"}}

    async def replace(self, deployment: dict[str, Any]) -> None:
        self._called("replace", deployment)
        self.deployed = deployment

    async def remove(self, deployment: Document) -> None:
        self._called("remove", deployment)
        self.deployed = None

    async def agents(self) -> Sequence[Document]:
        self._called("agents")
        return self.agents_pods

    async def cluster_info(self) -> Document:
        self._called("cluster_info")
        found: Document = self.info
        return found

    async def printed(self, pod: str) -> bytes:
        self.executed.append(pod)
        self._called("printed")
        return self.output

    async def pod(self, name: str) -> Document | None:
        self._called("pod")
        return next((each for each in self.agents_pods if each["metadata"]["name"] == name), None)

    async def remove_pod(self, pod: Document) -> None:
        self._called("remove_pod", pod)
        self.agents_pods = [each for each in self.agents_pods if each is not pod]

    def outdated(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.agents_pods if is_outdated(each, SHAPE)]


@dataclass
class StatusInMemory(StatusWriter):
    """What was written, the newest last."""

    leading: bool = True
    written: list[Strategy] = field(default_factory=list)
    failure: MusterError | None = None
    unreadable: MusterError | None = None

    def leads(self) -> bool:
        return self.leading

    async def check(self) -> None:
        if self.unreadable is not None:
            raise self.unreadable

    async def write(self, strategy: Strategy) -> None:
        if self.failure is not None:
            raise self.failure
        if not self.leading:
            raise NotLeaderError("another replica leads")
        self.written.append(strategy)


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
        self.requests: list[tuple[str, str]] = []  # verb and path of everything that was asked of it
        self.proxy_ca = OtherCA("front-proxy-ca")
        self.storage = MemoryStorage()
        self._stack = AsyncExitStack()
        self._listening: Listening | None = None

    async def __aenter__(self) -> Self:
        resources = (CONFIG_MAP, API_SERVICE, *(token_review(self, ("https://kubernetes.default.svc",)), *access_reviews(self)))
        groups = [ApiGroup(name, tuple(r for r in resources if r.group == name)) for name in {r.group for r in resources}]
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
        return (await self.storage.get(API_SERVICE.key, Key("", name))).document

    async def identify(self, token: str, audiences: Sequence[str]) -> Identity | None:
        actor = self.users.get(token)
        return None if actor is None else Identity(actor, audiences=tuple(audiences))

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        self.asked.append((actor.user, attributes))
        return Decision((actor.user, attributes.verb) in self.may)

    async def rules(self, _actor: Actor, _namespace: str) -> HeldRules:
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
