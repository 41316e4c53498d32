"""Connections to a hub's HTTPS server, directly or through an HTTP proxy."""

import http.client
import selectors
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from hubctl.errors import UsageError
from machinery.client.kubeconfig import ClusterEntry
from machinery.client.proxy import FORM, HTTPS_PORT, https_proxy_for, parse_proxy, shown_proxy

HTTP_PORT = 80


@dataclass(frozen=True, slots=True)
class HttpProxy:
    """The HTTP proxy of a connection. `str` describes it for messages, without user and password."""

    parts: SplitResult = field(repr=False)
    source: str

    def __str__(self) -> str:
        return f"the proxy {shown_proxy(self.parts.geturl())} ({self.source})"


def proxy_of(entry: ClusterEntry, source: str, environment: Mapping[str, str]) -> HttpProxy | None:
    """Return the `proxy-url` of the kubeconfig, else the environment's proxy; None: no proxy. Raises CommandError."""
    url, where = entry.proxy_url, f'proxy-url of cluster "{entry.name}" in kubeconfig {source}'
    if not url:
        url, where = https_proxy_for(entry.server, environment), "HTTPS_PROXY"
    if not url:
        return None
    parts = parse_proxy(url, ("http",))
    if parts is None:
        raise UsageError(f"{where}: hubctl does not support this proxy: write {FORM}")
    return HttpProxy(parts, where)


class HubHTTPSConnection(http.client.HTTPSConnection):
    """A connection to a kubeconfig's server. If the kubeconfig has a `tls-server-name`, that name is verified."""

    def __init__(self, entry: ClusterEntry, proxy: HttpProxy | None, context: ssl.SSLContext, timeout: float) -> None:
        server, via = urlsplit(entry.server), None if proxy is None else proxy.parts
        host, port = server.hostname or "", server.port or HTTPS_PORT
        first = (host, port) if via is None else (via.hostname or "", via.port or HTTP_PORT)
        super().__init__(*first, timeout=timeout, context=context)
        if via is not None:
            login = f"{unquote(via.username or '')}:{unquote(via.password or '')}".encode()
            basic = {"Proxy-Authorization": f"Basic {b64encode(login).decode('ascii')}"}
            self.set_tunnel(f"[{host}]" if ":" in host else host, port, {} if via.username is None else basic)
        self.tls = context
        self._server_name = entry.tls_server_name or host

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        self.sock = self.tls.wrap_socket(self.sock, server_hostname=self._server_name)

    @property
    def is_quiet(self) -> bool:
        """Whether the connection is open, and the hub has sent nothing since the last answer."""
        if self.sock is None:
            return False
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.sock, selectors.EVENT_READ)
            return not waiting.select(0)
