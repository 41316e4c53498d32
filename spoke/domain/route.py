"""Choice of the registration driver and proxy for a hub; pure rules.

Driver: if Muster's extension in the kubeconfig names a gRPC endpoint, the driver is `grpc`. Otherwise it is `csr`, which uses
only the Kubernetes API at the kubeconfig's server, like OCM's agent. An option can select the driver, if the kubeconfig
supports it.

Proxy: the agent's option, else the kubeconfig's `proxy-url`, else HTTPS_PROXY unless NO_PROXY names the hub. A proxy from the
option or the kubeconfig also applies to a hub on this machine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from machinery.client.proxy import checked_proxy, https_proxy_for, shown_proxy
from machinery.errors import InvalidError

AUTO = "auto"


class Driver(StrEnum):
    """The way in which the agent communicates with a hub."""

    GRPC = "grpc"
    CSR = "csr"


@dataclass(frozen=True, slots=True)
class Reach:
    """Driver and proxy settings for all hubs. `environment`: the environment variables of the process."""

    driver: str = AUTO
    proxy_url: str = field(default="", repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)

    def driver_for(self, *, source: str, endpoint: bool, certificate: bool) -> Driver:
        """Return the driver for the kubeconfig `source`, given whether it has a gRPC endpoint and a client certificate.

        Raises InvalidError, with the remedy, if option and kubeconfig contradict each other.
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
                f"kubeconfig {source} lacks client-certificate-data and client-key-data, by which a hub identifies its peers "
                "over gRPC: set --registration-driver=csr to use its token, or make another "
                "with hubctl create bootstrap-kubeconfig"
            )
        return chosen

    def proxy_for(self, server: str, *, named: str) -> str:
        """Return the proxy for a hub; empty: none. `server`: URL or host:port; `named`: the kubeconfig's `proxy-url`.

        Raises InvalidError for an invalid proxy URL; messages contain only its host.
        """
        proxy = self.proxy_url or named or https_proxy_for(server, self.environment)
        return checked_proxy(proxy) if proxy else ""


def over_grpc(proxy: str) -> str:
    """Return `proxy`. Raises InvalidError if gRPC cannot use this proxy."""
    if urlsplit(proxy).scheme == "https":
        raise InvalidError(
            f"gRPC does not support {shown_proxy(proxy)}, because connections to this proxy use TLS: name an http:// proxy, "
            "or set --registration-driver=csr, which supports it"
        )
    return proxy
