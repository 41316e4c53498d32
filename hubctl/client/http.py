"""HTTP client of the hub's HTTPS API: requests, pages of lists and watches, directly or through an HTTP proxy."""

import http.client
import json
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

from hubctl.auth.identity import Shown, identity_of
from hubctl.client.errors import ErrorTranslator, document_of
from hubctl.errors import CommandError, RejectedCredentialError
from machinery.client.kubeconfig import ClusterEntry, Credential, Kubeconfig
from machinery.errors import InvalidError
from machinery.product import GROUP_SUFFIX, suffixed
from machinery.runtime.tls import client_context

HTTPS_PORT, HTTP_PORT = 443, 80


class HubHTTPSConnection(http.client.HTTPSConnection):
    """Verifies the server under the kubeconfig's `tls-server-name`, if it has one."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, server_name: str | None, patience: float) -> None:
        super().__init__(host, port, timeout=patience, context=context)
        self._tls = context
        self._server_name = server_name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        # The tunnel's inner host is a private attribute of this class; without a tunnel it is the host itself.
        name = self._server_name or getattr(self, "_tunnel_host", None) or self.host
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=name)


def proxy_of(entry: ClusterEntry, source: str) -> SplitResult | None:
    """The proxy in a kubeconfig; None: none. Raises CommandError for an unusable one, without its password."""
    if not entry.proxy_url:
        return None
    try:
        parts = urlsplit(entry.proxy_url)
        good = parts.scheme == "http" and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise CommandError(
            f'kubeconfig {source}: the proxy-url of cluster "{entry.name}" is none that hubctl goes through: it is '
            "http://HOST:PORT, with USER:PASSWORD@ if need be",
            code=2,
        )
    return parts


def connection_to(
    entry: ClusterEntry, proxy: SplitResult | None, context: ssl.SSLContext, patience: float
) -> http.client.HTTPSConnection:
    """A connection that is not open yet."""
    server = urlsplit(entry.server)
    host, port = server.hostname or "", server.port or HTTPS_PORT
    if proxy is None:
        return HubHTTPSConnection(host, port, context, entry.tls_server_name, patience)
    connection = HubHTTPSConnection(proxy.hostname or "", proxy.port or HTTP_PORT, context, entry.tls_server_name, patience)
    connection.set_tunnel(host, port, _proxy_login(proxy))
    return connection


def _proxy_login(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode('ascii')}"}


T = TypeVar("T")

JSON = "application/json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
MERGE_PATCH = "application/merge-patch+json"
REQUEST_TIMEOUT, SILENCE = 30.0, 75.0
"""Seconds until an answer begins; seconds without any event of a watch, bookmarks included."""

APIS = "/apis/"


@dataclass(frozen=True, slots=True)
class Request:
    """A request, without its identity."""

    method: str
    target: str
    headers: Mapping[str, str]
    content: bytes | None = None


class ApiClient:
    """Client of one hub with one identity. Every failure is a CommandError."""

    def __init__(self, kubeconfig: Kubeconfig, patience: float = REQUEST_TIMEOUT, *, unseen: bool = False) -> None:
        """`patience`: seconds until an answer must begin. `unseen`: plug-ins must not prompt the user."""
        self._kubeconfig = kubeconfig
        self._patience = patience
        self._server = urlsplit(kubeconfig.cluster.server)
        endpoint = kubeconfig.cluster.endpoint
        self.group_suffix = endpoint.group_suffix if endpoint else GROUP_SUFFIX
        """Suffix of the hub's API groups. Paths use the default suffix, which is replaced in requests."""
        self._proxy = proxy_of(kubeconfig.cluster, kubeconfig.source)
        self._identity = identity_of(kubeconfig, unseen=unseen)
        self._refusals = ErrorTranslator(kubeconfig, self._identity)
        self._trusting: tuple[Credential | None, ssl.SSLContext] | None = None

    @property
    def source(self) -> str:
        """The kubeconfig's path."""
        return self._kubeconfig.source

    def certificate_ends(self) -> str | None:
        """Expiry of the client certificate; None: there is none."""
        credential = self._identity.shown().credential
        if credential is None:
            return None
        from machinery import pki  # noqa: PLC0415 - slow to load
        from machinery.meta.timestamps import format_time  # noqa: PLC0415 - likewise

        return format_time(pki.parse_certificate(credential.chain).not_after)

    def get(self, path: str, *, accept: str = JSON, **query: str) -> dict[str, Any]:
        return self.request("GET", path, accept=accept, query=query)

    def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        accept: str = JSON,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send a request; return the document of the answer. Raises CommandError with the hub's reason."""
        content = None if body is None else json.dumps(self._grouped(body)).encode()
        headers = {"Accept": accept, **({"Content-Type": content_type} if content else {})}
        return document_of(self._answer(Request(method, self._target(path, query), headers, content)))

    def raw(self, path: str) -> bytes:
        """The body at a path that is no object's. Raises CommandError."""
        return self._answer(Request("GET", path, {"Accept": "*/*"}))

    def stream(
        self, path: str, query: Mapping[str, str], *, accept: str = JSON, silence: float = SILENCE
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of a watch until the hub ends it. Raises ConnectionLostError after a break, or `silence` seconds."""
        connection, response, _ = self._begun(Request("GET", self._target(path, query), {"Accept": accept}))
        with closing(connection):
            connection.sock.settimeout(silence)
            # The next connection finds out whether it broke because the credential has expired; it may use a newer one.
            while line := self._guarded(response.readline, Shown()):
                if line.strip():
                    yield document_of(line)

    def _answer(self, asked: Request) -> bytes:
        """The whole body. Raises CommandError."""
        connection, response, shown = self._begun(asked)
        with closing(connection):
            return self._guarded(response.read, shown)

    def _begun(self, asked: Request) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse, Shown]:
        """A successful answer with its connection and the credential used for it. Raises CommandError.

        It retries once with another credential if the hub rejects the first one and the request cannot have had an effect.
        """
        shown = self._identity.shown()
        try:
            return *self._asked(asked, shown), shown
        except RejectedCredentialError as error:
            safe = error.had_no_effect or asked.method == "GET"
            if not safe or not self._identity.renewed(shown):
                raise
        shown = self._identity.shown()
        return *self._asked(asked, shown), shown

    def _asked(self, asked: Request, shown: Shown) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = connection_to(self._kubeconfig.cluster, self._proxy, self._context(shown.credential), self._patience)
        with ExitStack() as unless_answered:
            unless_answered.callback(connection.close)
            response = self._exchange(connection, asked, shown)
            self._check(response, shown)
            unless_answered.pop_all()
        return connection, response

    def _check(self, response: http.client.HTTPResponse, shown: Shown) -> None:
        """Raises CommandError for an error status."""
        if response.status >= http.client.BAD_REQUEST:
            raise self._refusals.of_answer(response.status, self._guarded(response.read, shown), shown)

    def _context(self, credential: Credential | None) -> ssl.SSLContext:
        if self._trusting is None or self._trusting[0] != credential:
            chain, key = (credential.chain, credential.key) if credential else (None, None)
            try:
                context = client_context(self._kubeconfig.cluster.certificate_authority, chain, key)
            except InvalidError as error:
                raise CommandError(f"kubeconfig {self._kubeconfig.source}: {error.message}", code=2) from None
            self._trusting = credential, context
        return self._trusting[1]

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        chosen = {name: value for name, value in (query or {}).items() if value}
        group, slash, rest = path.removeprefix(APIS).partition("/")
        if path.startswith(APIS):
            path = f"{APIS}{suffixed(group, self.group_suffix)}{slash}{rest}"
        return f"{path}?{urlencode(chosen)}" if chosen else path

    def served_version(self, api_version: str) -> str:
        """A group and version with the suffix of this hub's groups."""
        return suffixed(api_version, self.group_suffix)

    def _grouped(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        version = body.get("apiVersion")
        return {**body, "apiVersion": self.served_version(version)} if isinstance(version, str) else body

    def _exchange(self, connection: http.client.HTTPConnection, asked: Request, shown: Shown) -> http.client.HTTPResponse:
        headers = {"User-Agent": "hubctl", **asked.headers}
        if shown.token:
            headers["Authorization"] = f"Bearer {shown.token}"
        path = self._server.path.rstrip("/") + asked.target

        def ask() -> http.client.HTTPResponse:
            connection.request(asked.method, path, asked.content, headers)
            return connection.getresponse()

        return self._guarded(ask, shown)

    def _guarded(self, step: Callable[[], T], shown: Shown) -> T:
        """Run a step; turn its failure into a CommandError."""
        try:
            return step()
        except (OSError, http.client.HTTPException) as error:
            raise self._refusals.of_failure(error, shown) from None


PAGE = 500
"""Objects per page, as in kubectl."""
PAGING = ("continue", "remainingItemCount")
"""Fields of a list's metadata about its remaining pages."""


def pages(
    client: ApiClient, path: str, query: Mapping[str, str], *, accept: str = JSON, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the pages, with at most `limit` objects in total. Raises CommandError."""
    left, place = limit, ""
    while True:
        size = PAGE if left is None else min(PAGE, left)
        answer = client.get(path, accept=accept, **query, **{"limit": str(size), "continue": place})
        yield answer
        place = str((answer.get("metadata") or {}).get("continue") or "")
        if left is not None:
            left -= len(answer.get("items") or answer.get("rows") or ())
        if not place or left == 0:
            return


def items(client: ApiClient, path: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The objects of a long list. Raises CommandError."""
    for page in pages(client, path, query):
        yield from page.get("items") or ()


def fetch_all_pages(
    client: ApiClient, path: str, query: Mapping[str, str], *, accept: str = JSON, limit: int | None = None
) -> dict[str, Any]:
    """All pages as one answer, with the revision of the first. Raises CommandError."""
    found: dict[str, Any] = {}
    for answer in pages(client, path, query, accept=accept, limit=limit):
        for part in ("items", "rows"):
            if found and answer.get(part):
                found[part] = [*(found.get(part) or ()), *answer[part]]
        found = found or answer
    metadata = {name: value for name, value in (found.get("metadata") or {}).items() if name not in PAGING}
    return {**found, "metadata": metadata} if "metadata" in found else found
