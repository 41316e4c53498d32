"""Configuration of a client from a kubeconfig (file or mapping) or a pod's service account, and its proxy.

Missing parts of a kubeconfig are reported before any connection. Inline keys are written only into a directory of the caller,
who removes it as soon as the TLS context has loaded the key. Error messages contain no passwords of proxies.
"""

import asyncio
import os
import ssl
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import aiohttp

from machinery.client.kubeconfig_documents import FILES, ChosenContext, choose, decoded, with_one_context
from machinery.client.kubernetes_package import (
    ApiClient,
    ConfigException,
    Configuration,
    InClusterConfigLoader,
    load_kube_config_from_dict,
)
from machinery.errors import InvalidError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_CREDENTIALS = ("token", "tokenFile", "client-certificate", "client-certificate-data", "exec", "auth-provider", "username")
_TOKEN_REREAD_SECONDS = 60.0


async def from_kubeconfig(document: Mapping[str, Any], *, origin: str, base: Path, folder: Path) -> Configuration:
    """Return the client configuration of the current context.

    `origin`: name of the kubeconfig in errors; `base`: the folder at which relative paths start; `folder`: where the function
    writes inline certificates and keys. Raises InvalidError with all missing parts.
    """
    chosen = choose(document, origin)
    _check(chosen, origin)
    cluster = _materialised(chosen.cluster, "cluster", origin, base, folder)
    user = _materialised(chosen.user, "user", origin, base, folder)
    flat = with_one_context("only", cluster, user)
    configuration = _configuration()
    try:
        loader = await load_kube_config_from_dict(flat, client_configuration=configuration, temp_file_path=str(folder))
    except ConfigException as error:
        raise InvalidError(f"kubeconfig {origin} cannot be used: {error}") from error
    if not configuration.api_key and not configuration.cert_file:
        raise InvalidError(f"kubeconfig {origin}: the user's credential plugin returned no credential; run it to see why")
    hide_proxy_login(configuration)
    if "tokenFile" in user and "token" not in user:
        configuration.api_key = {name: value.strip() for name, value in configuration.api_key.items()}
        cast("Any", configuration).refresh_api_key_hook = _TokenFile(Path(user["tokenFile"]))
    elif "exec" in user:
        cast("Any", configuration).refresh_api_key_hook = _exec_plugin_hook(loader)
    return configuration


def in_cluster(*, account: Path = SERVICE_ACCOUNT, environment: Mapping[str, str] = os.environ) -> Configuration:
    """Return the configuration for this pod. The client reads the token every minute. Raises InvalidError outside a pod."""
    configuration = _configuration()
    loader = InClusterConfigLoader(
        token_filename=str(account / "token"), cert_filename=str(account / "ca.crt"), environ=environment
    )
    try:
        loader.load_and_set(configuration)
    except ConfigException as error:
        raise InvalidError(f"not running in a pod of a cluster ({str(error).rstrip('.')}): name a kubeconfig") from error
    return configuration


def _configuration() -> Configuration:
    """Return an empty configuration that verifies API servers in the same way with every version of Python.

    By default, Python 3.13 and later refuse certificates without an authority key identifier, such as those of EKS.
    """
    configuration = Configuration()
    cast("Any", configuration).disable_strict_ssl_verification = True
    return configuration


def _check(chosen: ChosenContext, origin: str) -> None:
    server = str(chosen.cluster.get("server") or "")
    missing = []
    if not server:
        missing.append("a server")
    elif not server.startswith(("https://", "http://")):
        raise InvalidError(f"kubeconfig {origin}: the cluster's server is not an https:// URL")
    trusted = any(chosen.cluster.get(key) for key in ("certificate-authority", "certificate-authority-data"))
    if not trusted and not server.startswith("http://") and not chosen.cluster.get("insecure-skip-tls-verify"):
        missing.append("a certificate-authority")
    if not any(chosen.user.get(key) for key in _CREDENTIALS):
        missing.append("a user's credential (client certificate, token or exec)")
    elif any(chosen.user.get(key) for key in ("client-certificate", "client-certificate-data")) and not any(
        chosen.user.get(key) for key in ("client-key", "client-key-data")
    ):
        missing.append("the user's client-key")
    if missing:
        raise InvalidError(f"kubeconfig {origin} lacks {' and '.join(missing)}")


def _materialised(entry: Mapping[str, Any], kind: str, origin: str, base: Path, folder: Path) -> dict[str, Any]:
    """Return `entry` with inline data as files in `folder` and absolute paths. Inline data overrides files, as in kubectl."""
    result = {key: value for key, value in entry.items() if not key.endswith("-data")}
    for key in FILES[kind]:
        if inline := entry.get(f"{key}-data"):
            file = folder / f"{kind}-{key}"
            file.touch(mode=0o600)
            file.write_bytes(decoded(inline, f"kubeconfig {origin}: {key}-data of the {kind}"))
            result[key] = str(file)
        elif named := entry.get(key):
            path = (base / str(named)).absolute()
            if not path.is_file():
                raise InvalidError(f"kubeconfig {origin}: {key} of the {kind} names {path}, which is not a file")
            result[key] = str(path)
    return result


class _TokenFile:
    """Reads a rotated token again once a minute."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._due = 0.0

    def __call__(self, configuration: Configuration) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._due:
            return
        try:
            token = self._path.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            token = ""
        if token:  # otherwise the file is being written or is missing; the present token may still be valid
            configuration.api_key["BearerToken"] = f"Bearer {token}"
            self._due = now + _TOKEN_REREAD_SECONDS


def _exec_plugin_hook(loader: Any) -> Callable[[Configuration], Awaitable[None]]:
    """Return a hook that runs the credential plugin again when its token expires soon, once for all waiting requests."""
    lock = asyncio.Lock()

    async def refresh(configuration: Configuration) -> None:
        if not hasattr(loader, "exec_plugin_expiry"):
            return  # without an expiry the client library would run the plugin for every request
        async with lock:
            await loader.load_from_exec_plugin()
        if hasattr(loader, "token"):
            configuration.api_key["BearerToken"] = loader.token

    return refresh


def hide_proxy_login(configuration: Configuration) -> None:
    """Move user and password from the proxy's URL into a header, because the library puts the URL into every error."""
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
        rest._create_connector = lambda: _Connector(place, rest.ssl_context, limit=rest.maxsize)  # noqa: SLF001 - no public API


class _Connector(aiohttp.TCPConnector):
    """Uses separate TLS contexts for the proxy and for the server behind it, because aiohttp has only one context."""

    def __init__(self, place: tuple[str, int], behind: ssl.SSLContext, *, limit: int) -> None:
        super().__init__(ssl=behind, limit=limit)
        self._place = place
        self._trusting = ssl.create_default_context()

    def _get_ssl_context(self, req: aiohttp.ClientRequest) -> ssl.SSLContext | None:
        if (req.url.host, req.url.port) == self._place:
            return self._trusting
        return super()._get_ssl_context(req)
