"""A small REST client for any Kubernetes API. It takes paths and JSON documents, and returns JSON documents and watch events.

Every call has a time limit and raises errors of `machinery.errors`: by the reason of the server's response; without a response,
UnavailableError (server unreachable) or DeadlineError (no response in time). The client does not retry.
"""

import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, cast
from urllib.parse import quote

import aiohttp

from machinery import product
from machinery.client import config
from machinery.client.config import trust_proxy
from machinery.client.errors import from_answer, from_status, from_transport
from machinery.client.kubeconfig_documents import read_document
from machinery.client.kubernetes_package import ApiClient, Configuration
from machinery.errors import InvalidError, NotFoundError, UnavailableError
from machinery.observability import tracing

LONGEST_EVENT = 16 << 20


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """An event of the type ADDED, MODIFIED, DELETED or BOOKMARK. An ERROR event raises an error instead."""

    type: str
    object: dict[str, Any]


Object = dict[str, Any]
Query = Mapping[str, str | int | bool]

MERGE_PATCH = "application/merge-patch+json"
REQUEST_TIMEOUT = timedelta(seconds=30)
CONNECT_TIMEOUT = timedelta(seconds=10)
PAGE_SIZE = 500
_JSON = "application/json"
_OK = range(200, 300)


@dataclass(frozen=True, slots=True)
class RestResource:
    """A resource of an API server: group ("" is the core group), version and plural name."""

    group: str
    version: str
    plural: str

    def path(self, name: str = "", *, namespace: str = "", subresource: str = "") -> str:
        """Return the path of the collection or of the object `name`. `namespace` "": all namespaces, or cluster-scoped."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = ("namespaces" if namespace else "", namespace, self.plural, name, subresource)
        return root + "".join(f"/{quote(part, safe='')}" for part in parts if part)


@dataclass(frozen=True, slots=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a list. `more`: the continue token of the next page; "": none."""

    items: tuple[Object, ...]
    resource_version: str
    more: str = ""


class KubeClient:
    """Client of one API server with one identity. `close` or the end of `async with` closes its connections."""

    def __init__(self, configuration: Configuration, *, within: timedelta = REQUEST_TIMEOUT) -> None:
        """`configuration`: from `machinery.client.config`. Raises InvalidError if a certificate or key cannot be loaded."""
        try:
            self._api = ApiClient(configuration)
        except (ssl.SSLError, OSError) as error:
            raise InvalidError("a certificate or key of the kubeconfig cannot be loaded: is it PEM, and a pair?") from error
        trust_proxy(self._api)
        self._api.user_agent = f"{product.NAME}/{product.version()}"
        self._within = within
        self.server = str(configuration.host)

    @classmethod
    async def from_file(cls, path: Path) -> Self:
        """Create a client for the kubeconfig at `path`. Raises InvalidError with the file's name and the problem."""
        document = read_document(path)
        return await cls.from_document(document, origin=str(path), base=path.parent)

    @classmethod
    async def from_document(
        cls,
        document: Mapping[str, Any],
        *,
        origin: str = "(given inline)",
        base: Path = Path(),
        within: timedelta = REQUEST_TIMEOUT,
        environment_proxies: bool = True,
    ) -> Self:
        """Create a client for a kubeconfig in memory. `origin`: its name in errors; `base`: where relative paths start.

        `environment_proxies`: use the proxy of the environment if the kubeconfig names none. Raises InvalidError.
        """
        with TemporaryDirectory(prefix=f"{product.NAME}-") as folder:
            configuration = await config.from_kubeconfig(document, origin=origin, base=base, folder=Path(folder))
            if not environment_proxies:
                cast("Any", configuration).client_session_kwargs = {"trust_env": False}
            try:
                return cls(configuration, within=within)
            except InvalidError as error:
                raise InvalidError(f"kubeconfig {origin}: {error.message}") from error

    @classmethod
    def in_cluster(cls, *, account: Path = config.SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ) -> Self:
        """Create a client with the ServiceAccount of this pod. Raises InvalidError outside of a pod."""
        return cls(config.in_cluster(account=account, environment=environment))

    async def get(self, path: str, query: Query | None = None) -> Object:
        return await self._json("GET", path, query=query)

    async def find(self, path: str) -> Object | None:
        """GET the object at `path`. Return None if it does not exist."""
        with suppress(NotFoundError):
            return await self.get(path)
        return None

    async def create(self, path: str, body: Object, query: Query | None = None) -> Object:
        """POST `body` to the collection `path`. Raises AlreadyExistsError, InvalidError, ..."""
        return await self._json("POST", path, query=query, body=body)

    async def update(self, path: str, body: Object, query: Query | None = None) -> Object:
        """PUT `body`. Its metadata.resourceVersion is a precondition. Raises ConflictError, NotFoundError, ..."""
        return await self._json("PUT", path, query=query, body=body)

    async def patch(self, path: str, body: Object, query: Query | None = None) -> Object:
        """PATCH the object at `path` with the merge patch `body`. Return the new object."""
        return await self._json("PATCH", path, query=query, body=body, content_type=MERGE_PATCH)

    async def delete(self, path: str, body: Object | None = None) -> Object:
        """DELETE the object at `path`. `body`: DeleteOptions, such as preconditions; None: no options. Return the response."""
        return await self._json("DELETE", path, body=body)

    async def list(self, path: str, query: Query | None = None) -> tuple[Object, ...]:
        """Return all objects of a collection, read in pages."""
        return tuple([item async for page in self.pages(path, query) for item in page.items])

    async def pages(self, path: str, query: Query | None = None, *, limit: int = PAGE_SIZE) -> AsyncIterator[ListPage]:
        """Yield a list in pages of `limit`, all of one revision. Raises ExpiredError if it is compacted meanwhile."""
        more = ""
        while True:
            document = await self.get(path, {**(query or {}), "limit": limit, **({"continue": more} if more else {})})
            metadata = document.get("metadata") or {}
            more = str(metadata.get("continue") or "")
            yield ListPage(tuple(document.get("items") or ()), str(metadata.get("resourceVersion") or ""), more)
            if not more:
                return

    async def raw(
        self,
        method: str,
        path: str,
        query: Query | None = None,
        *,
        body: object = None,
        content_type: str = _JSON,
        accept: str = _JSON,
        within: timedelta | None = None,
    ) -> Response:
        """Send any request and return the response. Raises an error only if there is no response."""
        seconds = (within or self._within).total_seconds()
        response = await self._send(method, path, query, seconds, body=body, content_type=content_type, accept=accept)
        async with response:
            try:
                content = await response.read()
            except (aiohttp.ClientError, OSError) as error:
                raise from_transport(self.server, error) from error
            return Response(response.status, response.headers, content)

    @asynccontextmanager
    async def watch(self, path: str, query: Query, *, within: timedelta) -> AsyncIterator[AsyncIterator[WatchEvent]]:
        """Yield the events of a collection until the server ends the stream. `within`: time limit of the whole stream.

        Entering the block raises the error of a refusal. The iterator raises the error of an ERROR event (410: ExpiredError).
        """
        response = await self._send("GET", path, {**query, "watch": True}, within.total_seconds())
        async with response:
            if response.status not in _OK:
                raise from_answer(response.status, await response.read(), retry_after=response.headers.get("Retry-After"))
            yield self._events(response)

    async def _events(self, response: aiohttp.ClientResponse) -> AsyncIterator[WatchEvent]:
        try:
            async for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise from_status(event["object"])
                if not isinstance(event["object"]["metadata"], dict):
                    raise TypeError("an object without metadata")  # noqa: TRY301 - handled like other malformed events
                yield WatchEvent(event["type"], event["object"])
        except (aiohttp.ClientError, OSError) as error:
            raise from_transport(self.server, error) from error
        except (ValueError, KeyError, TypeError) as error:
            raise UnavailableError(f"{self.server} sent something that is not a watch event") from error

    @asynccontextmanager
    async def websocket(
        self, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str]
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the binary messages of a WebSocket until the server closes it. The caller bounds the time.

        Raises aiohttp's errors. Entering the block raises WSServerHandshakeError if the server refuses.
        """
        _, url, headers, _, _ = await self._api.param_serialize(
            "GET", path, query_params=list(query), auth_settings=["BearerToken"]
        )
        rest = cast("Any", self._api).rest_client
        rest.pool_manager = rest.pool_manager or rest._create_pool_manager()  # noqa: SLF001 - as the library's own requests do
        proxy = {"proxy": rest.proxy, "proxy_headers": rest.proxy_headers}
        async with rest.pool_manager.ws_connect(url, headers=headers, protocols=protocols, **proxy) as socket:
            yield (message.data async for message in socket if message.type is aiohttp.WSMsgType.BINARY)

    async def turn_to(self, other: Self) -> None:
        """Use the server and credential of `other`. The caller must not use `other` afterwards.

        Calls in progress fail as if the server had closed the connections.
        """
        before, self._api, self.server = self._api, other._api, other.server
        await before.close()

    async def close(self) -> None:
        await self._api.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _json(
        self, method: str, path: str, *, query: Query | None = None, body: object = None, content_type: str = _JSON
    ) -> Object:
        answer = await self.raw(method, path, query, body=body, content_type=content_type)
        if answer.status not in _OK:
            raise from_answer(answer.status, answer.body, retry_after=answer.headers.get("Retry-After"))
        try:
            document = json.loads(answer.body)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise UnavailableError(f"{self.server} answered {method} {path} with something that is not a JSON object")
        return cast("Object", document)

    async def _send(
        self,
        method: str,
        path: str,
        query: Query | None,
        seconds: float,
        *,
        body: object = None,
        content_type: str = _JSON,
        accept: str = _JSON,
    ) -> aiohttp.ClientResponse:
        verb, url, headers, content, _ = await self._api.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": accept, "Content-Type": content_type, **dict(tracing.carried())},
            body=body,
            auth_settings=["BearerToken"],
        )
        bound = aiohttp.ClientTimeout(total=seconds, sock_connect=min(CONNECT_TIMEOUT.total_seconds(), seconds))
        try:
            answered = await self._api.call_api(
                verb, url, header_params=headers, body=content, _request_timeout=cast("Any", bound)
            )
        except (aiohttp.ClientError, OSError) as error:
            raise from_transport(self.server, error) from error
        return cast("aiohttp.ClientResponse", answered.response)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield complete lines. An incomplete last line is ignored."""
    rest = b""
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > LONGEST_EVENT:
            raise ValueError("an event is too long")
