"""The hub's HTTPS door from a client's side: requests, streams, and every way in which they fail as a sentence."""

import http.client
import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

from hub.cli.failures import CommandError, ConnectionLostError
from machinery.errors import InvalidError
from machinery.kubeconfig import Kubeconfig
from machinery.product import GROUP_SUFFIX, suffixed
from machinery.tls import client_context

T = TypeVar("T")

JSON = "application/json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io,application/json"
MERGE_PATCH = "application/merge-patch+json"
HTTPS_PORT = 443
REQUEST_TIMEOUT, SILENCE = 30.0, 75.0
"""Seconds: for an answer to begin; for a watch to say nothing, bookmarks included."""
GONE = 410
UNTRUSTED = frozenset((18, 19, 20, 21))
"""OpenSSL's verify codes for chains that end in no trusted CA."""
NOT_YET_VALID, EXPIRED, WRONG_HOST, WRONG_ADDRESS = 9, 10, 62, 64

APIS = "/apis/"


class _Connection(http.client.HTTPSConnection):
    """Verifies the server under the name that the kubeconfig gives, if it gives one."""

    def __init__(self, host: str, port: int, context: ssl.SSLContext, server_name: str | None, patience: float) -> None:
        super().__init__(host, port, timeout=patience, context=context)
        self._tls = context
        self._server_name = server_name

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        # A tunnel's inner host is not on this class's public face; without one it is the host itself.
        name = self._server_name or getattr(self, "_tunnel_host", None) or self.host
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=name)


class HubClient:
    """Speaks to one hub with one identity. Every failure is a CommandError."""

    def __init__(self, kubeconfig: Kubeconfig, patience: float = REQUEST_TIMEOUT) -> None:
        """`patience`: seconds until an answer must have begun."""
        self._kubeconfig = kubeconfig
        self._patience = patience
        self._server = urlsplit(kubeconfig.cluster.server)
        self._address = kubeconfig.cluster.server.rstrip("/")
        endpoint = kubeconfig.cluster.endpoint
        self.group_suffix = endpoint.group_suffix if endpoint else GROUP_SUFFIX
        """What the hub's API groups end in. All that is asked names the default one; it is replaced on the way."""
        credential = kubeconfig.credential
        try:
            self._context = client_context(
                kubeconfig.cluster.certificate_authority,
                credential.chain if credential else None,
                credential.key if credential else None,
            )
        except InvalidError as error:
            raise CommandError(f"kubeconfig {kubeconfig.source}: {error.message}", code=2) from None

    @property
    def source(self) -> str:
        """The kubeconfig's path."""
        return self._kubeconfig.source

    def certificate_ends(self) -> str | None:
        """When the client certificate ends; None: there is none."""
        credential = self._kubeconfig.credential
        if credential is None:
            return None
        from machinery import pki  # noqa: PLC0415 - slow to load
        from machinery.timestamps import format_time  # noqa: PLC0415 - likewise

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
        """The answer's document. Raises CommandError with the hub's reason."""
        with closing(self._connection()) as connection:
            content = None if body is None else json.dumps(self._grouped(body)).encode()
            headers = {"Accept": accept, **({"Content-Type": content_type} if content else {})}
            response = self._exchange(connection, method, self._target(path, query), headers, content)
            answer = self._guarded(response.read)
        if response.status >= http.client.BAD_REQUEST:
            raise self._refusal(response.status, answer)
        return _document(answer)

    def raw(self, path: str) -> bytes:
        """What lies at a path that is no object's. Raises CommandError."""
        with closing(self._connection()) as connection:
            response = self._exchange(connection, "GET", path, {"Accept": "*/*"})
            answer = self._guarded(response.read)
        if response.status >= http.client.BAD_REQUEST:
            raise self._refusal(response.status, answer)
        return answer

    def stream(
        self, path: str, query: Mapping[str, str], *, accept: str = JSON, silence: float = SILENCE
    ) -> Iterator[dict[str, Any]]:
        """The events of a watch until the hub ends it. Raises ConnectionLostError when it breaks or is silent for that long."""
        with closing(self._connection()) as connection:
            response = self._exchange(connection, "GET", self._target(path, query), {"Accept": accept})
            if response.status >= http.client.BAD_REQUEST:
                raise self._refusal(response.status, self._guarded(response.read))
            connection.sock.settimeout(silence)
            while line := self._guarded(response.readline):
                if line.strip():
                    yield _document(line)

    def _target(self, path: str, query: Mapping[str, str] | None) -> str:
        chosen = {name: value for name, value in (query or {}).items() if value}
        group, slash, rest = path.removeprefix(APIS).partition("/")
        if path.startswith(APIS):
            path = f"{APIS}{suffixed(group, self.group_suffix)}{slash}{rest}"
        return f"{path}?{urlencode(chosen)}" if chosen else path

    def spelled(self, api_version: str) -> str:
        """A group and version as this hub has it, whose groups may end otherwise than by default."""
        return suffixed(api_version, self.group_suffix)

    def _grouped(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        version = body.get("apiVersion")
        return {**body, "apiVersion": self.spelled(version)} if isinstance(version, str) else body

    def _connection(self) -> _Connection:
        host, port = self._server.hostname or "", self._server.port or HTTPS_PORT
        proxy = urlsplit(self._kubeconfig.cluster.proxy_url or "")
        name = self._kubeconfig.cluster.tls_server_name
        if not proxy.hostname:
            return _Connection(host, port, self._context, name, self._patience)
        connection = _Connection(proxy.hostname, proxy.port or HTTPS_PORT, self._context, name, self._patience)
        connection.set_tunnel(host, port)
        return connection

    def _exchange(
        self, connection: _Connection, method: str, target: str, headers: Mapping[str, str], content: bytes | None = None
    ) -> http.client.HTTPResponse:
        told = {"User-Agent": "hubctl", **headers}
        path = self._server.path.rstrip("/") + target

        def ask() -> http.client.HTTPResponse:
            connection.request(method, path, content, told)
            return connection.getresponse()

        return self._guarded(ask)

    def _guarded(self, step: Callable[[], T]) -> T:
        """The step's result, its failure as a sentence."""
        try:
            return step()
        except ssl.SSLCertVerificationError as error:
            raise CommandError(self._distrust(error)) from None
        except ssl.SSLError as error:
            raise self._tls_failure(error) from None
        except socket.gaierror:
            host = self._server.hostname
            raise ConnectionLostError(
                f'the host name "{host}" of the hub cannot be resolved: check the server in kubeconfig {self.source}'
            ) from None
        except TimeoutError:
            raise ConnectionLostError(
                f"the hub at {self._address} does not answer in time: is it reachable from here, is a firewall between?"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            self._check_own_certificate()
            why = (error.strerror if isinstance(error, OSError) else "") or type(error).__name__
            raise ConnectionLostError(
                f"the hub at {self._address} cannot be reached ({why.lower()}): "
                f"does `hub serve` run, and is this the address it listens on? (kubeconfig {self.source})"
            ) from None

    def _check_own_certificate(self) -> None:
        """Raises CommandError when it is over: a hub drops such a connection in TLS, mostly without a reason."""
        credential = self._kubeconfig.credential
        if credential is None:
            return
        from machinery import pki  # noqa: PLC0415 - slow to load, and only needed when something failed
        from machinery.clock import SystemClock  # noqa: PLC0415 - likewise

        ends = pki.parse_certificate(credential.chain).not_after
        if ends <= SystemClock().now():
            raise CommandError(
                f"the certificate in kubeconfig {self.source} expired at {ends:%Y-%m-%dT%H:%M:%SZ}. The hub writes a fresh "
                "admin.kubeconfig into its data directory when it starts"
            )

    def _distrust(self, error: ssl.SSLCertVerificationError) -> str:
        code = error.verify_code
        if code in UNTRUSTED:
            return (
                f"the server at {self._address} is not the hub of kubeconfig {self.source}: its certificate is not signed by "
                "the CA in that file. Use the kubeconfig that this hub wrote"
            )
        if code in (WRONG_HOST, WRONG_ADDRESS):
            return (
                f'the hub\'s certificate is not valid for "{self._server.hostname}": connect under a name that the hub serves, '
                "or add this one to the hub's setting serving_names (--serving-names)"
            )
        if code in (NOT_YET_VALID, EXPIRED):
            return f"the hub's certificate is {error.verify_message.removeprefix('certificate is ')}: compare both clocks"
        return f"the certificate of the server at {self._address} is not good: {error.verify_message}"

    def _tls_failure(self, error: ssl.SSLError) -> CommandError:
        self._check_own_certificate()
        said = (error.reason or "").lower().replace("_", " ")
        if "alert" in said and ("certificate" in said or "unknown ca" in said):
            return CommandError(
                f"the hub at {self._address} does not accept the client certificate in kubeconfig {self.source} ({said}): "
                "it was made by another hub, or has expired. Use the kubeconfig that this hub wrote"
            )
        return ConnectionLostError(
            f"no TLS connection to {self._address} ({said or 'closed'}): is this the HTTPS port of a hub, not its gRPC port?"
        )

    def _refusal(self, status: int, content: bytes) -> CommandError:
        try:
            told = _document(content)
        except CommandError:
            told = {}
        reason, message = str(told.get("reason") or ""), str(told.get("message") or f"HTTP status {status}")
        if status == http.client.UNAUTHORIZED:
            return CommandError(
                f"the hub does not know the credential in kubeconfig {self.source}: it is revoked, has expired or is another "
                "hub's. The hub writes a fresh admin.kubeconfig into its data directory when it starts",
                reason=reason,
            )
        if status == http.client.FORBIDDEN and self._kubeconfig.credential is None:
            return CommandError(f"{message}. Kubeconfig {self.source} holds no client certificate", reason=reason)
        if status == http.client.FORBIDDEN:
            return CommandError(f"{message}. The credential in kubeconfig {self.source} may not do this", reason=reason)
        return CommandError(message, reason=reason or ("Expired" if status == GONE else ""))


def _document(content: bytes) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise CommandError("the answer is not a hub's: is the server in the kubeconfig a hub's HTTPS address?")
    return document
