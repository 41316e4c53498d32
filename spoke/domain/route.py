"""Choice of the registration driver and proxy for a hub; pure rules.

Driver: a kubeconfig with our extension names a gRPC endpoint and gets `grpc`; one without gets `csr`, which does everything
over the Kubernetes API at its server, as OCM's agent does. An option overrides this if the kubeconfig suits the driver.

Proxy: the agent's option, else the kubeconfig's `proxy-url`, else HTTPS_PROXY unless NO_PROXY names the hub. An explicit proxy
applies to every hub; one from the environment never applies to this machine itself (Go's rule).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from machinery.errors import InvalidError

AUTO = "auto"
_PROXIES = ("http", "https")


class Driver(StrEnum):
    """How the agent communicates with a hub."""

    GRPC = "grpc"
    CSR = "csr"


@dataclass(frozen=True, slots=True)
class Reach:
    """Settings for all hubs. `environment` is the process's."""

    driver: str = AUTO
    proxy_url: str = field(default="", repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def driver_for(self, *, source: str, endpoint: bool, certificate: bool) -> Driver:
        """The driver for the kubeconfig `source`, given whether it has a gRPC endpoint and a client certificate.

        Raises InvalidError for a contradiction, with what to do.
        """
        chosen = Driver(self.driver) if self.driver != AUTO else Driver.GRPC if endpoint else Driver.CSR
        if chosen is Driver.GRPC and not endpoint:
            raise InvalidError(
                f"kubeconfig {source} names no gRPC endpoint, so it is meant for the csr driver, but "
                "--registration-driver=grpc is set: leave the driver on auto, or make another kubeconfig with "
                "hubctl create bootstrap-kubeconfig"
            )
        if chosen is Driver.GRPC and not certificate:
            raise InvalidError(
                f"kubeconfig {source} lacks client-certificate-data and client-key-data, by which a hub knows its peers over "
                "gRPC: set --registration-driver=csr to use its token, or make another with hubctl create bootstrap-kubeconfig"
            )
        return chosen

    def proxy_for(self, server: str, *, named: str) -> str:
        """The proxy for a hub at `server` (a URL, or host:port) whose kubeconfig has the `proxy-url` `named`; empty: none.

        Raises InvalidError for an invalid proxy URL; messages contain only its host.
        """
        proxy = self.proxy_url or named or self._from_environment(server)
        return checked_proxy(proxy) if proxy else ""

    def _from_environment(self, server: str) -> str:
        host, port = _place(server)
        if _is_this_machine(host) or any(_excepts(each.strip(), host, port) for each in self._variable("NO_PROXY").split(",")):
            return ""
        proxy = self._variable("HTTPS_PROXY")
        return proxy if "://" in proxy or not proxy else f"http://{proxy}"

    def _variable(self, name: str) -> str:
        return self.environment.get(name) or self.environment.get(name.lower()) or ""


def checked_proxy(url: str) -> str:
    """Return `url`. Raises InvalidError unless it is http://host[:port] or https://host[:port], with or without a user."""
    try:
        parts = urlsplit(url)
        good = parts.scheme in _PROXIES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise InvalidError(
            "the proxy's URL is not one: it is http://HOST:PORT or https://HOST:PORT, with USER:PASSWORD@ if need be"
        )
    return url


def shown_proxy(url: str) -> str:
    """A proxy's URL without user and password, for messages."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def over_grpc(proxy: str) -> str:
    """`proxy`, if gRPC can use it. Raises InvalidError."""
    if urlsplit(proxy).scheme == "https":
        raise InvalidError(
            f"gRPC cannot go through {shown_proxy(proxy)}, a proxy that is itself spoken to over TLS: name an http:// proxy, "
            "or set --registration-driver=csr, which can"
        )
    return proxy


def _place(server: str) -> tuple[str, int | None]:
    parts = urlsplit(server if "://" in server else f"//{server}")
    return (parts.hostname or "").lower(), parts.port or (443 if parts.scheme == "https" else None)


def _is_this_machine(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _excepts(entry: str, host: str, port: int | None) -> bool:
    """Match one entry of NO_PROXY: `*`, a domain with subdomains, `.domain` for subdomains only, an address, a network."""
    if entry == "*":
        return True
    try:
        return bool(entry) and ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        pass  # host or entry is a name
    name, _, wanted = entry.lower().partition(":")
    if not name or (wanted and wanted != str(port)):
        return False
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")
