"""Values of a parsed kubeconfig."""

from dataclasses import dataclass, field
from pathlib import Path

from machinery.client.exec_credential import ExecUser
from machinery.errors import InvalidError
from machinery.identity import HubId
from machinery.product import GROUP_SUFFIX, KUBECONFIG_EXTENSION

ENDPOINT_KIND, NAME_KIND = "HubEndpoint", "ClusterName"


@dataclass(frozen=True, slots=True)
class HubEndpoint:
    """The extension `muster`: gRPC endpoint and hub id."""

    grpc_server: str
    """`host:port`."""
    hub_id: HubId
    certificate_authority: bytes | None = None
    """PEM; None: the same CA as that of the HTTPS door."""
    cluster_name: str | None = None
    """The only cluster name that the bootstrap credential admits; the agent's default name."""
    group_suffix: str = GROUP_SUFFIX
    """Suffix of the hub's API groups, from the API group of the extension."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A client certificate with its key, PEM, leaf first."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Credential(...)"


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A user's token, inline or in a file that is renewed by others. The caller decides which of both it uses."""

    text: str = field(default="", repr=False)
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class ClusterEntry:
    """The cluster of a kubeconfig: the hub."""

    name: str
    server: str
    """`https://host:port` of the HTTPS door."""
    certificate_authority: bytes
    """PEM."""
    endpoint: HubEndpoint | None = None
    proxy_url: str | None = field(default=None, repr=False)
    tls_server_name: str | None = None
    cluster_name: str | None = None
    """As `HubEndpoint.cluster_name` without an endpoint, in its own extension, since the endpoint's selects gRPC."""


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """The current context; `source` names it in errors. None: the user has no client certificate, or no token."""

    source: str
    context: str
    cluster: ClusterEntry
    user: str
    credential: Credential | None = None
    namespace: str | None = None
    token: BearerToken | None = None
    plugin: ExecUser | None = None
    """Plugin of the user. A credential in the file itself wins. Reading a kubeconfig never runs it."""
    unusable: str = ""
    """Unsupported credential of the user and its replacement, for a message; empty: none."""

    def require_endpoint(self) -> HubEndpoint:
        """The gRPC endpoint. Raises InvalidError."""
        if self.cluster.endpoint is None:
            raise InvalidError(f'kubeconfig {self.source}: no extension "{KUBECONFIG_EXTENSION}", so it is for the csr driver')
        return self.cluster.endpoint

    def require_credential(self) -> Credential:
        """The client certificate. Raises InvalidError."""
        if self.credential is None:
            aside = "; a plug-in (exec) is not run here" if self.plugin is not None else ""
            raise InvalidError(
                f'kubeconfig {self.source}: user "{self.user}" lacks client-certificate-data and client-key-data, '
                f"and the hub knows its peers by their certificate{aside}"
            )
        return self.credential
