"""An HTTP server whose stop has two steps, so that a drain can run in between: stop listening, then close."""

import asyncio
import json
import logging
import re
import ssl
from datetime import timedelta
from http import HTTPStatus
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, HttpProcessingError

from machinery.apiserver.http.arrivals import Arrival
from machinery.apiserver.http.connections import LOG_PERIOD, ConnectionBounds, Connections, Guard
from machinery.apiserver.http.limits import Seat
from machinery.apiserver.http.status_errors import status_document
from machinery.errors import MethodNotAllowedError
from machinery.runtime.clock import SystemClock

LINE_LIMIT = 1024 * 1024
"""Largest request line and largest header, in bytes. Selectors may be long. `ConnectionBounds.header_bytes` limits the sum."""
TCP_BACKLOG = 1024
DEFAULT_BOUNDS = ConnectionBounds()
_UNKNOWN_METHOD = re.compile(r"b['\"][!#$%&*+.^_|~0-9A-Za-z-]+ \S+ HTTP/1\.[01]['\"]")
"""Matches aiohttp's message about a request that is valid except for an unknown method."""
NO_DESCRIPTOR = "socket.accept() out of system resource"
"""Start of the message that asyncio logs if no file descriptor is free for a connection."""


class Unreadable(logging.Filter):
    """Logs malformed HTTP requests at DEBUG only, without their content.

    aiohttp logs each such request as an error with a stack and the malformed line. So any client could fill the log, and the
    line may contain a credential.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, HttpProcessingError):
            return True
        record.levelno, record.levelname = logging.DEBUG, logging.getLevelName(logging.DEBUG)
        args = record.args if isinstance(record.args, tuple) else ()
        record.msg, record.args = f"{record.msg}: %s", (*args, type(error).__name__)
        record.exc_info = None
        return log.isEnabledFor(logging.DEBUG)


class OutOfDescriptors(logging.Filter):
    """Logs at most once per LOG_PERIOD seconds that asyncio cannot accept connections.

    asyncio retries every second and logs this message, with a stack, for each connection in the backlog.
    """

    def __init__(self) -> None:
        super().__init__()
        self._clock = SystemClock()
        self._logged_at = -LOG_PERIOD

    def filter(self, record: logging.LogRecord) -> bool:
        if not str(record.msg).startswith(NO_DESCRIPTOR):
            return True
        now = self._clock.monotonic()
        if now < self._logged_at + LOG_PERIOD:
            return False
        self._logged_at = now
        record.msg = "no file descriptor is free for a connection: raise the limit (ulimit -n, LimitNOFILE=)"
        record.exc_info = None
        return True


log = logging.getLogger(__name__)
log.addFilter(Unreadable())
logging.getLogger("asyncio").addFilter(OutOfDescriptors())


class Refusal(web.Response):
    """Response without a Server header, to a request that aiohttp refuses."""

    async def _prepare_headers(self) -> None:
        await super()._prepare_headers()
        self.headers.pop("Server", None)


class Handler(web.RequestHandler):
    """Responds to malformed requests as Go's net/http does. The response contains no part of the request and no Python details.

    For an unknown method the response is a Status, as from kube-apiserver.
    """

    __slots__ = ()

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        super().handle_error(request, status, exc, message)  # logs, and raises ConnectionError after a response has begun
        if isinstance(exc, BadHttpMethod) and _UNKNOWN_METHOD.search(str(exc)):
            refused = MethodNotAllowedError("the server does not allow this method on the requested resource")
            answer = Refusal(body=json.dumps(status_document(refused)).encode(), content_type="application/json", status=405)
        else:
            answer = Refusal(text=f"{status} {HTTPStatus(status).phrase}", status=status)
        answer.force_close()
        return answer


async def _without_server(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.pop("Server", None)


class Listening:
    """A listening server. Call `stop_listening`, then `close`; both are idempotent."""

    def __init__(self, runner: web.AppRunner, server: asyncio.Server, connections: Connections, grace: timedelta) -> None:
        self._runner = runner
        self._server = server
        self._grace = grace
        self._port = int(server.sockets[0].getsockname()[1])
        self.connections = connections

    @property
    def port(self) -> int:
        """The bound port, also if port 0 was requested."""
        return self._port

    async def stop_listening(self) -> None:
        """Stop accepting connections. Open connections continue."""
        self._server.close()

    async def close(self, grace: timedelta | None = None) -> None:
        """End watches, wait up to `grace` for other requests, close all connections. None: `shutdown_timeout` of `serve`."""
        await self.stop_listening()
        await self._runner.shutdown()
        self.connections.leave()
        await self.connections.gone(self._grace if grace is None else grace)
        self.connections.abort()
        await self._runner.cleanup()


async def serve(
    app: web.Application,
    host: str,
    port: int,
    ssl_context: ssl.SSLContext | None = None,
    *,
    shutdown_timeout: timedelta = timedelta(seconds=10),
    bounds: ConnectionBounds = DEFAULT_BOUNDS,
) -> Listening:
    """Listen on `host`:`port` (0: any free port). Raises OSError if it cannot. `shutdown_timeout`: default grace of `close`."""
    loop = asyncio.get_running_loop()
    options: dict[str, Any] = {
        "access_log": None,
        "logger": log,
        "keepalive_timeout": bounds.idle.total_seconds(),
        "max_line_size": LINE_LIMIT,
        "max_field_size": LINE_LIMIT,
        "auto_decompress": False,  # a body of kilobytes could become gigabytes
    }
    # handler_cancellation: otherwise an idle watch of a disconnected client would stay until its timeout
    runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=1, handler_cancellation=True, **options)
    app.on_response_prepare.append(_without_server)
    await runner.setup()
    handlers = runner.server
    assert handlers is not None  # noqa: S101 - `setup` has made it
    connections = Connections(bounds)

    def guarded(place: Seat, shown: asyncio.Transport) -> Guard:
        return Guard(Handler(handlers, loop=loop, **options), connections, place, shown)

    try:
        server = await loop.create_server(
            lambda: Arrival(connections, guarded, ssl_context), host, port, backlog=TCP_BACKLOG, reuse_port=False
        )
    except BaseException:
        await runner.cleanup()
        raise
    return Listening(runner, server, connections, shutdown_timeout)
