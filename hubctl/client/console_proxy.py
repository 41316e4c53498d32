"""The server of `hubctl console`. It forwards requests of a browser on this machine to the hub, with the credential of hubctl.

Any web page in a browser, and any user of this machine, can send requests to a loopback port. So each request must name this
server as its host (against DNS rebinding) and come from its own pages. Each request to the API must also contain a secret. Each
start creates a new secret, and only the printed URL contains it. Requests for the console's files need no secret, because the
files contain no data.
"""

import hmac
import json
import re
import selectors
import socket
import threading
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any
from urllib.parse import unquote

from hubctl.client.http import JSON, WATCH_TIMEOUT, ApiClient
from hubctl.errors import CommandError, ConnectionLostError, RejectedCredentialError

ADDRESS = "127.0.0.1"
CONSOLE = "/console/"
REDIRECTED = ("/", "/console")
SECRET = "Muster-Console-Secret"  # noqa: S105 - the header's name
MARK = "Muster-Console"
"""Header that marks requests of a console for the hub."""
FORWARDED = ("Accept", "Accept-Encoding", "Content-Type", "If-None-Match")
"""Headers of the browser's requests that the hub gets: no credentials, no cookies, no impersonation."""
RETURNED = frozenset(
    (
        *("audit-id", "cache-control", "content-encoding", "content-security-policy", "content-type", "etag"),
        *("cross-origin-opener-policy", "cross-origin-resource-policy", "referrer-policy", "retry-after", "vary", "warning"),
        *("x-content-type-options", "x-frame-options"),
    )
)
"""Headers of the hub's answers that the browser gets."""
READS = frozenset(("GET", "HEAD"))
WITHOUT_BODY = (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
MAX_BODY = 3 * 1024 * 1024
MAX_CONNECTIONS = 64
PIECE = 64 * 1024
LOCAL_TIMEOUT = 75.0
"""A connection is closed if the browser sends or reads nothing for this many seconds, also between requests."""


@dataclass(frozen=True, slots=True)
class RequestGuard:
    """The rules by which the server of `hubctl console` refuses requests."""

    port: int
    secret: str = field(repr=False)

    def refusal(self, method: str, target: str, headers: Any) -> tuple[HTTPStatus, str] | None:
        """Return status and reason of a refusal; None: forward the request. `headers`: a mapping with `get_all`."""
        hosts = {f"{ADDRESS}:{self.port}", f"localhost:{self.port}"}
        named = headers.get_all("Host") or [""]
        if len(named) != 1 or named[0] not in hosts:
            return HTTPStatus.FORBIDDEN, f"this server is {ADDRESS}:{self.port}, not the host that the request names"
        path = target.partition("?")[0]
        parts = unquote(path).replace("\\", "/").split("/")
        if not path.startswith("/") or path.startswith("//") or {".", ".."} & set(parts) or not target.isascii():
            return HTTPStatus.BAD_REQUEST, "the path is not an absolute one without . and .."
        is_file = path in REDIRECTED or path.startswith(CONSOLE)
        site, origins = headers.get("Sec-Fetch-Site", "none"), headers.get_all("Origin") or ()
        opens = is_file and headers.get("Sec-Fetch-Mode") == "navigate"  # a link on another page may open the console
        if (site not in ("same-origin", "none") and not opens) or any(each != f"http://{named[0]}" for each in origins):
            return HTTPStatus.FORBIDDEN, "pages of another origin may not use this server"
        if is_file and method not in READS:
            return HTTPStatus.METHOD_NOT_ALLOWED, "the files of the console are only read"
        shown = headers.get(SECRET, "").encode("latin-1", "replace")
        if not is_file and not hmac.compare_digest(shown, self.secret.encode()):
            return HTTPStatus.UNAUTHORIZED, "this page is not of the running `hubctl console`: open the URL that it printed"
        return None


def body_size(headers: Any) -> int | None:
    """Return the length of a request's body in bytes; None if the body is not accepted. `headers`: as in `RequestGuard`."""
    lengths = headers.get_all("Content-Length") or ["0"]
    if headers.get_all("Transfer-Encoding") or len(lengths) > 1 or not re.fullmatch("[0-9]{1,7}", lengths[0]):
        return None
    return length if (length := int(lengths[0])) <= MAX_BODY else None


class ConsoleProxy(ThreadingTCPServer):
    """Listens on a port of the loopback address; 0: a free port. Raises OSError."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS
    block_on_close = False

    def __init__(self, client: ApiClient, port: int, secret: str) -> None:
        """`client` sends requests; within its block `keep_connections`, it reuses connections. `secret`: see `url`."""
        super().__init__((ADDRESS, port), _Handler)
        self.client = client
        self.guard = RequestGuard(self.server_address[1], secret)
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)

    @property
    def url(self) -> str:
        """The URL to open. The secret is in its fragment, because browsers do not send the fragment to servers."""
        return f"http://{ADDRESS}:{self.guard.port}{CONSOLE}#secret={self.guard.secret}"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, *_args: Any) -> None:
        """Do nothing, because a disconnected browser is not an error."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = LOCAL_TIMEOUT
    server: ConsoleProxy

    def do_GET(self) -> None:
        length = body_size(self.headers)
        content = self.rfile.read(length) if length else None  # even before a refusal, so that the browser gets it
        refusal = self.server.guard.refusal(self.command, self.path, self.headers)
        if length is None or len(content or b"") < length:
            self.close_connection = True
            refusal = HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has a Content-Length of at most {MAX_BODY}, and is complete"
        if refusal is not None:
            self._refuse(*refusal)
            return
        if self.path.partition("?")[0] in REDIRECTED:
            self.send_response_only(HTTPStatus.FOUND)
            self.send_header("Location", CONSOLE)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        headers = {name: value for name in FORWARDED if (value := self.headers.get(name))} | {MARK: "1"}
        try:
            with self.server.client.forward(self.command, self.path, headers, content) as (response, connection):
                self._answer(response, connection)
        except RejectedCredentialError as error:
            self._refuse(HTTPStatus.UNAUTHORIZED, error.sentence)
        except CommandError as error:
            lost = isinstance(error, ConnectionLostError)
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE if lost else HTTPStatus.BAD_GATEWAY, error.sentence)
        except (OSError, HTTPException, ValueError):
            self.close_connection = True  # shows the browser that the answer is incomplete

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - names of the base class

    def _answer(self, response: HTTPResponse, connection: socket.socket | None) -> None:
        """Forward the answer. Raises OSError, HTTPException or ValueError if one side disconnects."""
        length = None if response.chunked else response.length
        self.send_response_only(response.status)
        for name, value in response.getheaders():
            if name.lower() in RETURNED:
                self.send_header(name, value)
        if self.command != "HEAD" and response.status not in WITHOUT_BODY:
            self.send_header(*(("Transfer-Encoding", "chunked") if length is None else ("Content-Length", str(length))))
        self.end_headers()
        if length is None and self.command != "HEAD":
            self._stream(response, connection)
            return
        left = length or 0
        while piece := response.read(PIECE):
            self.wfile.write(piece)
            left -= len(piece)
        self.close_connection = self.close_connection or left > 0

    def _stream(self, response: HTTPResponse, connection: socket.socket | None) -> None:
        """Forward each piece when it arrives, until one side ends the stream."""
        ended, end = socket.socketpair()
        watch = threading.Thread(target=_end_with_client, args=(self.connection, ended, connection), daemon=True)
        try:
            if connection is not None:
                connection.settimeout(WATCH_TIMEOUT)
            watch.start()
            while piece := response.read1(PIECE):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        finally:
            end.close()
            watch.join()
            ended.close()

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        reason = status.phrase.title().replace(" ", "")
        document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": why, "reason": reason, "code": status}
        body = json.dumps(document).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", JSON)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_args: Any) -> None:
        """Log nothing, because requests and refusals are not useful on the terminal."""


def _end_with_client(client: socket.socket, ended: socket.socket, connection: socket.socket | None) -> None:
    """Shut down the connection to the hub when the client disconnects. Return at the end of the stream."""
    with selectors.DefaultSelector() as waiting:
        waiting.register(client, selectors.EVENT_READ)
        waiting.register(ended, selectors.EVENT_READ)
        ready = [key.fileobj for key, _ in waiting.select()]
    try:
        if client in ready and ended not in ready and connection is not None and not client.recv(1, socket.MSG_PEEK):
            socket.socket.shutdown(connection, socket.SHUT_RDWR)  # SSLSocket.shutdown would break a read in another thread
    except OSError:
        return
