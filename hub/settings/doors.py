"""Data directory, database, addresses of both servers, replica name, and client CAs."""

import re
from ipaddress import ip_network
from pathlib import Path

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from hub.settings.fields import Address, AdvertisedAddress, ListenAddress, SecretName, SettingsGroup, Words
from machinery.product import GROUP_SUFFIX
from machinery.runtime.directory import default_data_dir


class StorageSettings(SettingsGroup):
    """Data directory, database, addresses and keys."""

    data_dir: Path = Field(default_factory=default_data_dir)
    """Directory for the database, CA, certificates and the admin kubeconfig. The hub creates it at the first start."""
    database_url: SecretStr | None = None
    """SQLAlchemy URL of the database. Default: SQLite in the data directory."""
    grpc_listen: ListenAddress = Address("127.0.0.1", 8443)
    """Listen address of the gRPC server, to which agents connect: host:port."""
    https_listen: ListenAddress = Address("127.0.0.1", 6443)
    """Listen address of the HTTPS API, to which hubctl, kubectl and consoles connect: host:port."""
    grpc_advertised: AdvertisedAddress = None
    """Address at which agents reach --grpc-listen: host[:port]. The hub writes it into bootstrap kubeconfigs and the serving
    certificate. Default: the listen address."""
    https_advertised: AdvertisedAddress = None
    """Address at which operators and tools reach --https-listen: host[:port]. The hub writes it into kubeconfigs and the
    serving certificate. Default: the listen address."""
    replica_name: str | None = None
    """Name of this replica; it must stay the same after a restart. Default: the environment variable POD_NAME, else the host
    name; with SQLite a name that is stored in the data directory."""
    admin_kubeconfig_secret: SecretName = None
    """NAMESPACE/NAME of a Secret to which the hub also writes the admin kubeconfig (key `kubeconfig`) and its CA certificates
    (key `ca.crt`). The Secret is in the cluster in which the hub runs, or in --management-cluster."""
    keys_dir: Path | None = None
    """Directory with the keys that all replicas share: ca.crt, ca.key, secrets.key and token-*.key, as created by `hub keys
    create`. The hub only reads this directory. Default: the data directory, in which the first start creates the keys."""
    secrets_key_file: Path | None = None
    """File with the keys that encrypt Secrets in the database, one key of 32 bytes in base64 per line. The first key encrypts,
    all keys decrypt. Replicas share one file. Default: secrets.key in the keys directory."""

    @field_validator("https_listen")
    @classmethod
    def _ports_differ(cls, address: Address, seen: ValidationInfo) -> Address:
        if address == seen.data.get("grpc_listen"):
            raise ValueError(f"both doors cannot listen on {address}: give grpc_listen and https_listen different ports")
        return address


_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
MAX_SUFFIX = 200


class ExternalTrustSettings(SettingsGroup):
    """Names of the hub and external trust."""

    client_ca_file: Path | None = None
    """External CA certificates (PEM) whose client certificates the HTTPS API accepts, for users and tools, never for agents.
    The hub reloads a changed file."""
    client_ca_groups: Words = ()
    """Groups (O) that the hub reads from certificates of --client-ca-file. It ignores all other groups, and always groups that
    begin with system:."""
    api_group_suffix: str = GROUP_SUFFIX
    """Suffix of the hub's API groups, after cluster., addon. and hub. It is fixed at the first start. A value other than the
    default makes the groups of several hubs distinct, but OCM's own agents cannot connect."""
    management_cluster: str | None = None
    """Kubernetes cluster that serves the hub as an aggregated API server: a kubeconfig file, or in-cluster. The hub trusts this
    cluster's front proxy, and authenticates and authorizes its users by TokenReview and SubjectAccessReview."""
    https_proxies: Words = ()
    """Networks (CIDR) of load balancers in front of the HTTPS API, and of --ocm-grpc-listen, that send the PROXY protocol,
    version 1 or 2. The hub uses the client address in this header for limits and audit records. A header from any other address
    closes the connection."""
    serving_names: Words = ()
    """Additional host names and addresses for the serving certificate."""

    @field_validator("api_group_suffix")
    @classmethod
    def _is_a_domain(cls, suffix: str) -> str:
        if len(suffix) > MAX_SUFFIX or not _DOMAIN.fullmatch(suffix):
            raise ValueError(
                f'"{suffix}" is not a suffix for API groups: write a domain of two labels or more, such as hub.example.com'
            )
        return suffix

    @field_validator("https_proxies")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            try:
                ip_network(network)
            except ValueError:
                raise ValueError(f'"{network[:80]}" is not a network: write 10.0.0.0/8, fd00::/8 or one address') from None
        return networks
