"""hubctl's one connection: HTTPS with the kubeconfig's client certificate, JSON in and out, errors in words.

Only the standard library: a command line has to start at once.
"""

import http.client
import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from hub.cli.errors import CliError, RefusedError
from machinery.directory import default_data_dir
from machinery.errors import InvalidError
from machinery.kubeconfig import Kubeconfig, read_kubeconfig
from machinery.product import version
from machinery.tls import client_context

TIMEOUT_SECONDS = 30.0
JSON = "application/json"
TABLE = f"{JSON};as=Table;v=v1;g=meta.k8s.io,{JSON}"
MERGE_PATCH = "application/merge-patch+json"
KUBECONFIG_VARIABLES = ("HUBCTL_KUBECONFIG", "KUBECONFIG")


def find_kubeconfig(option: str | None) -> Path:
    """`--kubeconfig`, $HUBCTL_KUBECONFIG, $KUBECONFIG, or the admin kubeconfig of a hub on this machine."""
    for candidate in (option, *(os.environ.get(name) for name in KUBECONFIG_VARIABLES)):
        if candidate:
            return Path(candidate.split(os.pathsep)[0]).expanduser()
    own = default_data_dir() / "admin.kubeconfig"
    if own.exists():
        return own
    raise CliError(
        f"no kubeconfig: give --kubeconfig FILE or set HUBCTL_KUBECONFIG; "
        f"a hub on this machine writes {own} at its first start",
        exit_code=2,
    )


class Door:
    """The hub's HTTPS door as the kubeconfig describes it."""

    def __init__(self, kubeconfig: Kubeconfig) -> None:
        self.kubeconfig = kubeconfig
        parts = urlsplit(kubeconfig.cluster.server)
        self._host, self._port = parts.hostname or "", parts.port or 443
        self._prefix = parts.path.rstrip("/")
        self._context = self._tls()

    @classmethod
    def open(cls, option: str | None) -> "Door":
        """Reads the kubeconfig. Raises CliError."""
        try:
            return cls(read_kubeconfig(find_kubeconfig(option)))
        except InvalidError as error:
            raise CliError(error.message, exit_code=2) from None

    def get(self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON) -> dict[str, Any]:
        return self._call("GET", path, query, accept=accept)

    def create(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("POST", path, body=document)

    def patch(self, path: str, change: Mapping[str, Any], *, content_type: str = MERGE_PATCH) -> dict[str, Any]:
        return self._call("PATCH", path, body=change, content_type=content_type)

    def replace(self, path: str, document: Mapping[str, Any]) -> dict[str, Any]:
        return self._call("PUT", path, body=document)

    def delete(self, path: str) -> dict[str, Any]:
        return self._call("DELETE", path)

    def watch(self, path: str, query: Mapping[str, str], *, accept: str = JSON) -> Iterator[dict[str, Any]]:
        """Events until the hub ends the watch. Raises CliError when the connection breaks."""
        connection, response = self._send("GET", path, {**query, "watch": "1"}, accept=accept)
        try:
            if response.status >= http.client.BAD_REQUEST:
                raise _refusal(response.status, response.read())
            if connection.sock is not None:
                connection.sock.settimeout(None)
            for line in response:
                if line.strip():
                    yield json.loads(line)
        except (OSError, http.client.HTTPException):
            return
        finally:
            connection.close()

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        accept: str = JSON,
        content_type: str = JSON,
    ) -> dict[str, Any]:
        connection, response = self._send(method, path, query, body=body, accept=accept, content_type=content_type)
        try:
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise CliError(f"{self._where} broke the connection: {error}") from None
        finally:
            connection.close()
        if response.status >= http.client.BAD_REQUEST:
            raise _refusal(response.status, content)
        try:
            answer: dict[str, Any] = json.loads(content)
        except ValueError:
            raise CliError(f"{self._where} answered something that is not JSON: is it a hub?") from None
        return answer

    def _send(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        *,
        body: Mapping[str, Any] | None = None,
        accept: str = JSON,
        content_type: str = JSON,
    ) -> tuple[http.client.HTTPSConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPSConnection(self._host, self._port, context=self._context, timeout=TIMEOUT_SECONDS)
        headers = {"Accept": accept, "User-Agent": f"hubctl/{version()}"}
        content = None
        if body is not None:
            content = json.dumps(body).encode()
            headers["Content-Type"] = content_type
        target = self._prefix + quote(path) + (f"?{urlencode(query)}" if query else "")
        try:
            connection.request(method, target, body=content, headers=headers)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise CliError(self._why_unreachable(error)) from None

    @property
    def _where(self) -> str:
        return f"the hub at {self.kubeconfig.cluster.server}"

    def _why_unreachable(self, error: Exception) -> str:
        source = self.kubeconfig.source
        if isinstance(error, ssl.SSLCertVerificationError):
            why = error.verify_message
            return f"{self._where} shows a certificate that {source} does not trust ({why}): is it another hub, or a proxy?"
        if isinstance(error, ssl.SSLError):
            return f"{self._where} refuses the client certificate in {source}: is it expired or of another hub?"
        if isinstance(error, ConnectionRefusedError):
            return f"{self._where} does not answer: start it with `hub serve`, or correct the server in {source}"
        if isinstance(error, socket.gaierror):
            return f'the host name "{self._host}" in {source} is not known to this machine\'s resolver'
        if isinstance(error, TimeoutError):
            return f"{self._where} did not answer within {TIMEOUT_SECONDS:.0f} s"
        return f"{self._where} cannot be reached: {error}"

    def _tls(self) -> ssl.SSLContext:
        cluster, credential = self.kubeconfig.cluster, self.kubeconfig.credential
        chain, key = (credential.chain, credential.key) if credential else (None, None)
        return client_context(cluster.certificate_authority, chain, key)


def _refusal(code: int, content: bytes) -> RefusedError:
    try:
        status = json.loads(content)
        return RefusedError(str(status["message"]), str(status.get("reason", "")))
    except (ValueError, KeyError, TypeError):
        text = content[:200].decode("utf-8", "replace").strip()
        return RefusedError(f"the hub answered {code}: {text}", "")
