"""HTTP CONNECT proxies: keeps passwords out of error messages and verifies proxies that use TLS."""

import ssl
from base64 import b64encode
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import aiohttp

from machinery.client.kubernetes_package import ApiClient, Configuration


def hide_proxy_login(configuration: Configuration) -> None:
    """Move user and password from the proxy's URL, which the library puts into every error, into a header."""
    parts = urlsplit(str(configuration.proxy or ""))
    if parts.username is None:
        return
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    changed = cast("Any", configuration)
    changed.proxy_headers = {"Proxy-Authorization": f"Basic {b64encode(login.encode()).decode()}"}
    changed.proxy = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def trust_proxy(api: ApiClient) -> None:
    """Verify an https:// proxy by this machine's CAs (SSL_CERT_FILE) instead of the API server's CA."""
    rest = cast("Any", api).rest_client
    proxy = urlsplit(str(rest.proxy or ""))
    if proxy.scheme == "https":
        place = (proxy.hostname or "", proxy.port or 443)
        rest._create_connector = lambda: _Connector(place, rest.ssl_context, limit=rest.maxsize)  # noqa: SLF001 - made for it


class _Connector(aiohttp.TCPConnector):
    """Uses separate TLS contexts for the proxy and for the server behind it; aiohttp has a single one."""

    def __init__(self, place: tuple[str, int], behind: ssl.SSLContext, *, limit: int) -> None:
        super().__init__(ssl=behind, limit=limit)
        self._place = place
        self._trusting = ssl.create_default_context()

    def _get_ssl_context(self, req: aiohttp.ClientRequest) -> ssl.SSLContext | None:
        if (req.url.host, req.url.port) == self._place:
            return self._trusting
        return super()._get_ssl_context(req)
