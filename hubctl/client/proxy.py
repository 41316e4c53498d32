"""Connections to the hub's HTTPS door, directly or through an HTTP proxy; TLS verifies the hub in both cases."""

import http.client
import ssl
from base64 import b64encode
from urllib.parse import SplitResult, unquote, urlsplit

from hubctl.errors import CommandError
from machinery.client.kubeconfig import ClusterEntry

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
    connection.set_tunnel(host, port, _login(proxy))
    return connection


def _login(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode('ascii')}"}
