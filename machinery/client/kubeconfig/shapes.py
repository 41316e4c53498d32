"""What a kubeconfig says, and the names in it."""

from dataclasses import dataclass, field
from pathlib import Path

from machinery.client.exec_credential import ExecUser
from machinery.errors import InvalidError
from machinery.identity import HubId
from machinery.product import GROUP_SUFFIX, KUBECONFIG_EXTENSION

ENDPOINT_KIND, NAME_KIND = "HubEndpoint", "ClusterName"


@dataclass(frozen=True, slots=True)
class HubEndpoint:
    """The extension: where agents connect, and which hub it is."""

    grpc_server: str
    """`host:port`."""
    hub_id: HubId
    certificate_authority: bytes | None = None
    """PEM; None: the same CA as the HTTPS door's."""
    cluster_name: str | None = None
    """The one cluster name that a bootstrap credential may admit; its agent takes that name unless told otherwise."""
    group_suffix: str = GROUP_SUFFIX
    """What the hub's API groups end in; the extension says it as its own group."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A client certificate. PEM, leaf first."""

    chain: bytes
    key: bytes

    def __repr__(self) -> str:
        return "Credential(...)"


@dataclass(frozen=True, slots=True)
class BearerToken:
    """A user's token, inline, or in a file that others renew; which of both counts is for who shows it to say."""

    text: str = field(default="", repr=False)
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class ClusterEntry:
    """The hub, as a kubeconfig has it."""

    name: str
    server: str
    """`https://host:port` of the HTTPS door."""
    certificate_authority: bytes
    """PEM."""
    endpoint: HubEndpoint | None = None
    proxy_url: str | None = field(default=None, repr=False)
    tls_server_name: str | None = None
    cluster_name: str | None = None
    """As `HubEndpoint.cluster_name`, where there is no endpoint. In an extension of its own: the endpoint's chooses gRPC."""


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """What the current context says; errors call it by its `source`. None: the user has no client certificate, or no token."""

    source: str
    context: str
    cluster: ClusterEntry
    user: str
    credential: Credential | None = None
    namespace: str | None = None
    token: BearerToken | None = None
    plugin: ExecUser | None = None
    """The program that tells the user's credential; what stands in the file itself wins. Reading a kubeconfig runs nothing."""
    unusable: str = ""
    """What the user has that nobody here logs in with, and what to use instead; empty: nothing."""

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
