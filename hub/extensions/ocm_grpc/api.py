"""Requests to the hub's API within the process, on behalf of an agent's connection.

They pass all filters of a request at the HTTPS door: audit, deadline, authentication by the connection's certificate or the
call's token, limits, authorization. So this door has no rules of its own.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, cast

import msgspec
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion11
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import RequestHandler
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from machinery.apiserver.http.filters import INCOMING
from machinery.apiserver.server import ApiServer
from machinery.errors import BY_REASON, MusterError, UnavailableError
from machinery.meta.objects import Document
from machinery.runtime.tls import peer_certificate

FORWARDED = ("authorization", "user-agent", "traceparent")
"""Metadata of a call that become headers of the request. All other metadata is ignored, for example impersonation."""
JSON, MERGE_PATCH = "application/json", "application/merge-patch+json"


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    status: int
    body: bytes

    @property
    def is_error(self) -> bool:
        return self.status >= web.HTTPBadRequest.status_code

    def document(self) -> Any:
        """Return the JSON object in the body; {} if the body is no JSON object."""
        try:
            found = msgspec.json.decode(self.body)
        except msgspec.DecodeError:
            return {}
        return found if isinstance(found, dict) else {}

    def error(self) -> MusterError:
        """Return the error for the Status in the body; UnavailableError without a Status, for example while the hub stops."""
        status = self.document()
        message = str(status.get("message") or self.body[:200].decode("utf-8", "replace").strip())
        return BY_REASON.get(str(status.get("reason")), UnavailableError)(message)


class _Request(web.Request):
    """A request that this process makes itself, so it did not arrive at a socket."""

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        for listener in self[INCOMING].on_headers:
            listener(response)


class _Connection:
    """The transport of a request: information about the agent's connection. `abort` ends only the call."""

    def __init__(self, transport: asyncio.Transport, on_abort: Callable[[], None]) -> None:
        self._transport = transport
        self.abort = on_abort

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)


@dataclass(frozen=True, slots=True)
class _Protocol:
    """The part of aiohttp's protocol that a request reads."""

    transport: _Connection
    peername: Any
    sockname: None = None
    ssl_context: None = None


class _Writer(AbstractStreamWriter):
    """Passes on what a streamed response writes. A watch writes one line at a time."""

    def __init__(self, take: Callable[[bytes], None]) -> None:
        self._take = take

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self._take(bytes(chunk))

    async def write_eof(self, chunk: bytes = b"") -> None:
        if chunk:
            self._take(chunk)

    async def drain(self) -> None:
        pass

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        del encoding, strategy

    def enable_chunking(self) -> None:
        pass

    async def write_headers(self, status_line: str, headers: "CIMultiDict[str]") -> None:
        del status_line, headers


class ApiCaller:
    """Makes requests for one call of an agent. `on_end`: called when the credential of an open watch ends."""

    def __init__(
        self, server: ApiServer, transport: asyncio.Transport, metadata: Mapping[str, str], on_end: Callable[[], None]
    ) -> None:
        self._server = server
        self._protocol = _Protocol(_Connection(transport, on_end), transport.get_extra_info("peername"))
        self._headers = {name: metadata[name] for name in FORWARDED if name in metadata}
        shown = peer_certificate(transport) or metadata.get("authorization", "").encode()
        self.credential = blake2b(shown, digest_size=16).digest()
        """Digest of the credential. Calls with the same digest come from the same agent."""

    async def send(self, method: str, path: str, body: bytes = b"") -> ApiAnswer:
        """Make a request and return the whole answer."""
        streamed = bytearray()
        response = await self._answer(method, path, body, streamed.extend)
        whole = response.body if isinstance(response, web.Response) and not streamed else None
        return ApiAnswer(response.status, whole if isinstance(whole, bytes) else bytes(streamed))

    async def watch(self, path: str, take: Callable[[str, Document], None]) -> ApiAnswer:
        """Call `take` with type and object of each event until the watch ends. Returns the answer, which may be an error."""

        def read(line: bytes) -> None:
            event = msgspec.json.decode(line)
            take(event["type"], event["object"])

        response = await self._answer("GET", path, b"", read)
        body = response.body if isinstance(response, web.Response) else None
        return ApiAnswer(response.status, body if isinstance(body, bytes) else b"")

    async def _answer(self, method: str, path: str, body: bytes, take: Callable[[bytes], None]) -> web.StreamResponse:
        headers = CIMultiDict(self._headers, Accept=JSON)
        if body:
            headers["Content-Type"] = MERGE_PATCH if method == "PATCH" else JSON
        message = RawRequestMessage(
            method,
            path,
            HttpVersion11,
            CIMultiDictProxy(headers),
            raw_headers=(),
            should_close=False,
            compression=None,
            upgrade=False,
            chunked=False,
            url=URL(path, encoded=True),
        )
        task, loop = cast("asyncio.Task[None]", asyncio.current_task()), asyncio.get_running_loop()
        protocol = cast("RequestHandler", self._protocol)
        request = _Request(message, EMPTY_PAYLOAD, protocol, _Writer(take), task, loop)
        request._read_bytes = body  # noqa: SLF001 - as if it had been read; a test fails if aiohttp moves it
        return await self._server.handle(request)
