"""HTTP client of the hub's HTTPS API: requests, pages of lists and watches."""

import http.client
import json
import os
import re
import ssl
import threading
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import click

from hubctl.auth.identity import RequestCredentials, identity_of, impersonation_headers
from hubctl.client.errors import ErrorTranslator, document_of
from hubctl.client.transport import HubHTTPSConnection, proxy_of
from hubctl.errors import CommandError, RejectedCredentialError, UsageError
from machinery.client.kubeconfig import Credential, Kubeconfig
from machinery.errors import InvalidError
from machinery.product import GROUP_SUFFIX, suffixed
from machinery.runtime.tls import client_context

JSON = "application/json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
MERGE_PATCH = "application/merge-patch+json"
REQUEST_TIMEOUT, WATCH_TIMEOUT = 30.0, 75.0
"""Seconds to wait for the start of an answer; seconds to wait for the next event of a watch (including bookmarks)."""
PAUSES = 1.0, 2.0, 4.0, 8.0
"""Seconds to wait before a refused request is sent again."""

ERRORS = range(http.client.BAD_REQUEST, 600)

APIS = "/apis/"
WARNING = re.compile(r'299 [^ ]+ "((?:[^"\\]|\\.)*)".*')


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    target: str
    headers: Mapping[str, str]
    content: bytes | None = None


class ApiClient:
    """Client of one hub with one identity, for several threads. Every failure is a CommandError."""

    def __init__(self, kubeconfig: Kubeconfig, timeout: float = REQUEST_TIMEOUT, *, prompts: bool = True) -> None:
        """`timeout`: seconds to wait for the start of an answer. `prompts`: plug-ins may ask the user and print messages."""
        self._kubeconfig = kubeconfig
        self._timeout = timeout
        endpoint = kubeconfig.cluster.endpoint
        self.group_suffix = endpoint.group_suffix if endpoint else GROUP_SUFFIX
        """Suffix of the hub's API groups. Callers use the default suffix in paths; requests replace it."""
        self._proxy = proxy_of(kubeconfig.cluster, kubeconfig.source, os.environ)
        self._impersonation = impersonation_headers(kubeconfig.impersonation)
        self._identity = identity_of(kubeconfig, prompts=prompts)
        self._errors = ErrorTranslator(kubeconfig, self._identity, None if self._proxy is None else str(self._proxy))
        self._warnings: set[str] = set()
        self._tls: tuple[Credential | None, ssl.SSLContext] | None = None
        self._lock = threading.Lock()
        """Protects the credential and its TLS context."""
        self._idle: list[HubHTTPSConnection] | None = None
        self.dry_run = False
        """Whether the hub validates requests without making changes."""

    @property
    def note(self) -> str:
        """The end of messages about changes: empty, or a note about the dry run."""
        return " (dry run)" if self.dry_run else ""

    @contextmanager
    def keep_connections(self) -> Iterator[None]:
        """Context manager. In its block, requests reuse connections; otherwise each request opens its own connection."""
        self._idle = idle = list[HubHTTPSConnection]()
        try:
            yield
        finally:
            self._idle = None
            while idle:
                idle.pop().close()

    def certificate_ends(self) -> str | None:
        """Return the expiry of the client certificate, as in Kubernetes objects; None: there is no client certificate."""
        credential = self._identity.current().credential
        if credential is None:
            return None
        from machinery import pki  # noqa: PLC0415 - slow to load
        from machinery.meta.timestamps import format_time  # noqa: PLC0415 - likewise

        return format_time(pki.parse_certificate(credential.chain).not_after)

    def get(self, path: str, *, accept: str = JSON, **query: str) -> dict[str, Any]:
        return self.request("GET", path, accept=accept, query=query)

    def find(self, path: str, **query: str) -> dict[str, Any] | None:
        """Return the object at `path`; None: the object does not exist. Raises CommandError."""
        try:
            return self.get(path, **query)
        except CommandError as error:
            if error.reason != "NotFound":
                raise
            return None

    def patch(self, path: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Send a merge patch. Return the object afterwards. Raises CommandError."""
        return self.request("PATCH", path, patch, content_type=MERGE_PATCH)

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
        """Send a request. Return the document in the answer. Raises CommandError with the hub's reason."""
        if body is not None and isinstance(body.get("apiVersion"), str):
            body = {**body, "apiVersion": self.served_version(body["apiVersion"])}
        if self.dry_run and method != "GET":
            query = {**(query or {}), "dryRun": "All"}
        content = None if body is None else json.dumps(body).encode()
        headers = {"Accept": accept, **({"Content-Type": content_type} if content else {})}
        return document_of(self._read(_Request(method, self._target(path, query), headers, content)))

    def raw(self, path: str) -> bytes:
        """Return the body of the hub's answer to a GET of `path`, in any format. Raises CommandError."""
        return self._read(_Request("GET", path, {"Accept": "*/*"}))

    def stream(
        self, path: str, query: Mapping[str, str], *, accept: str = JSON, silence: float = WATCH_TIMEOUT
    ) -> Iterator[dict[str, Any]]:
        """Yield the events of a watch until the hub ends it.

        Raises ConnectionLostError if the connection breaks, or if nothing arrives for `silence` seconds.
        """
        connection, response, _ = self._open(_Request("GET", self._target(path, query), {"Accept": accept}))
        # If the credential has expired, the next connection reports this or uses a newer credential.
        with closing(connection), self._translated(RequestCredentials()):
            connection.sock.settimeout(silence)
            while line := response.readline():
                if line.strip():
                    yield document_of(line)

    @contextmanager
    def forward(
        self, method: str, target: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> Iterator[tuple[http.client.HTTPResponse, ssl.SSLSocket | None]]:
        """Context manager that forwards another client's request. Its block gets the hub's unchanged answer and the socket.

        The answer may be an error. Another thread can shut down the socket to end a read. Raises CommandError if there is no
        answer, or if the hub rejects the credential.
        """
        request, refused = _Request(method, target, headers, content), frozenset((http.client.UNAUTHORIZED,))
        connection, response, _ = self._open(request, refused)
        try:
            yield response, connection.sock
        except BaseException:
            connection.close()
            raise
        if response.isclosed():
            self._release(connection)
        else:
            connection.close()

    def check_watch(self, path: str, query: Mapping[str, str]) -> None:
        """Open a watch and end it immediately. Raises CommandError with the hub's reason if the hub refuses the query."""
        watch = {**query, "watch": "1", "timeoutSeconds": "1", "sendInitialEvents": "false"}
        target = self._target(path, {**watch, "resourceVersionMatch": "NotOlderThan"})
        self._open(_Request("GET", target, {"Accept": JSON}))[0].close()

    def served_version(self, api_version: str) -> str:
        """Return `api_version`. In groups of Muster, this hub's suffix replaces the default suffix."""
        return suffixed(api_version, self.group_suffix)

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        chosen = {name: value for name, value in (query or {}).items() if value}
        group, slash, rest = path.removeprefix(APIS).partition("/")
        if path.startswith(APIS):
            path = f"{APIS}{suffixed(group, self.group_suffix)}{slash}{rest}"
        return f"{path}?{urlencode(chosen)}" if chosen else path

    def _read(self, request: _Request) -> bytes:
        """Send the request and return the whole body. Raises CommandError."""
        for pause in (*PAUSES, None):
            try:
                connection, response, presented = self._open(request)
                break
            except CommandError as error:  # the hub has too many requests or stops, and this one had no effect
                if pause is None or error.reason != "TooManyRequests" or self._timeout < REQUEST_TIMEOUT:
                    raise
                time.sleep(pause)
        with ExitStack() as unless_read, self._translated(presented):
            unless_read.callback(connection.close)
            self._print_warnings(response.headers.get_all("Warning") or ())
            found = response.read()
            unless_read.pop_all()
        self._release(connection)
        return found

    def _print_warnings(self, headers: Iterable[str]) -> None:
        for header in headers:
            found = WARNING.fullmatch(header)
            text = re.sub(r"\\(.)", r"\1", found[1]) if found else ""
            if text and text.isprintable() and text not in self._warnings:
                self._warnings.add(text)
                click.echo(f"warning: {text}", err=True)

    def _open(
        self, request: _Request, refused: Container[int] = ERRORS
    ) -> tuple[HubHTTPSConnection, http.client.HTTPResponse, RequestCredentials]:
        """Return an answer with its connection and credential. Raises CommandError, also for a status in `refused`.

        If the hub rejects the credential and the request had no effect, retry once with another credential.
        """
        with self._lock:
            presented = self._identity.current()
        try:
            return *self._send(presented, request, refused), presented
        except RejectedCredentialError as error:
            safe = error.had_no_effect or request.method == "GET"
            with self._lock:
                if not safe or not self._identity.renewed(presented):
                    raise
                presented = self._identity.current()
        return *self._send(presented, request, refused), presented

    def _send(
        self, presented: RequestCredentials, request: _Request, refused: Container[int]
    ) -> tuple[HubHTTPSConnection, http.client.HTTPResponse]:
        """Send the request once. Raises CommandError, also for a status in `refused`."""
        path = urlsplit(self._kubeconfig.cluster.server).path.rstrip("/")
        sent: list[tuple[str, str | bytes]] = [("User-Agent", "hubctl"), *request.headers.items(), *self._impersonation]
        if presented.token:
            sent.append(("Authorization", f"Bearer {presented.token}"))
        if request.content is not None:
            sent.append(("Content-Length", str(len(request.content))))
        connection = self._connection(presented.credential)
        with ExitStack() as unless_answered, self._translated(presented):
            unless_answered.callback(connection.close)
            # connection.request cannot repeat a header, as several groups need.
            connection.putrequest(
                request.method, path + request.target, skip_accept_encoding="Accept-Encoding" in request.headers
            )
            for name, value in sent:
                connection.putheader(name, value)
            connection.endheaders(request.content)
            response = connection.getresponse()
            if response.status in refused:
                error = self._errors.of_answer(response.status, response.read(), presented)
                unless_answered.pop_all()
                self._release(connection)
                raise error
            unless_answered.pop_all()
        return connection, response

    def _connection(self, credential: Credential | None) -> HubHTTPSConnection:
        """Return an idle connection with this credential, or a new one that is not open yet. Raises CommandError."""
        with self._lock:
            context = self._context(credential)
            while self._idle:
                kept = self._idle.pop()
                if kept.tls is context and kept.is_quiet:
                    return kept
                kept.close()
        return HubHTTPSConnection(self._kubeconfig.cluster, self._proxy, context, self._timeout)

    def _release(self, connection: HubHTTPSConnection) -> None:
        """Keep the connection for reuse, or close it. Its answer must have been read."""
        idle = self._idle
        if idle is None or connection.sock is None:
            connection.close()
        else:
            connection.sock.settimeout(self._timeout)
            idle.append(connection)

    def _context(self, credential: Credential | None) -> ssl.SSLContext:
        if self._tls is None or self._tls[0] != credential:
            chain, key = (credential.chain, credential.key) if credential else (None, None)
            try:
                context = client_context(self._kubeconfig.cluster.certificate_authority, chain, key)
            except InvalidError as error:
                raise UsageError(f"kubeconfig {self._kubeconfig.source}: {error.message}") from None
            self._tls = credential, context
        return self._tls[1]

    @contextmanager
    def _translated(self, presented: RequestCredentials) -> Iterator[None]:
        """Context manager that converts failures of requests in its block to CommandError."""
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            raise self._errors.of_failure(error, presented) from None
