"""Data directory, database, addresses of the doors, replica name, and client CAs."""

import re
from ipaddress import ip_network
from pathlib import Path

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from hub.settings.fields import SECRET, Address, ListenAddress, SettingsGroup, Words
from machinery.product import GROUP_SUFFIX
from machinery.runtime.directory import default_data_dir


class Places(SettingsGroup):
    """What a hub is made of, and where it is found."""

    data_dir: Path = Field(
        default_factory=default_data_dir,
        description="Where the hub keeps its database, CA, certificates and the admin kubeconfig. Made at the first start.",
    )
    database_url: SecretStr | None = Field(
        None, description="SQLAlchemy URL of the database. Without it: SQLite in the data directory."
    )
    grpc_listen: ListenAddress = Field(Address("127.0.0.1", 8443), description="Where agents connect: host:port.")
    https_listen: ListenAddress = Field(
        Address("127.0.0.1", 6443), description="Where hubctl, kubectl and consoles connect: host:port."
    )
    grpc_advertised: ListenAddress | None = Field(
        None,
        description="How agents reach --grpc-listen from where they are: host[:port]. Written into bootstrap kubeconfigs and "
        "into the serving certificate. Without it: the listening address.",
    )
    https_advertised: ListenAddress | None = Field(
        None,
        description="How operators and tools reach --https-listen: host[:port]. Written into every kubeconfig and into the "
        "serving certificate. Without it: the listening address.",
    )
    replica_name: str | None = Field(
        None,
        description="Which replica of the hub this is, the same after every restart. Without it: POD_NAME of the environment, "
        "else the host's name; on SQLite a name that the data directory keeps.",
    )
    admin_kubeconfig_secret: str | None = Field(
        None,
        description="NAMESPACE/NAME of a Secret in the cluster that the hub runs in (or that --management-cluster names), "
        "where the administrator's kubeconfig is kept right too, under `kubeconfig`, with what it trusts under `ca.crt`.",
    )
    keys_dir: Path | None = Field(
        None,
        description="Folder with the keys that all replicas share: ca.crt, ca.key, secrets.key and token-*.key, as "
        "`hub keys create` makes them; only read. Without it: the data directory, where the first start of all makes them.",
    )
    secrets_key_file: Path | None = Field(
        None,
        description="Keys that encrypt Secrets in the database, 32 bytes in base64 on each line: the first encrypts, all "
        "decrypt. Replicas share one file. Without it: secrets.key beside the other keys.",
    )

    @field_validator("admin_kubeconfig_secret")
    @classmethod
    def _is_namespace_and_name(cls, secret: str | None) -> str | None:
        if secret is not None and not SECRET.fullmatch(secret):
            raise ValueError(f'"{secret[:80]}" names no Secret: write NAMESPACE/NAME')
        return secret

    @field_validator("grpc_listen", "https_listen")
    @classmethod
    def _names_a_port(cls, address: Address) -> Address:
        if not address.port:
            raise ValueError("a listening address needs a port between 1 and 65535, as in 127.0.0.1:8443")
        return address

    @field_validator("https_listen")
    @classmethod
    def _ports_differ(cls, address: Address, seen: ValidationInfo) -> Address:
        if address == seen.data.get("grpc_listen"):
            raise ValueError(f"both doors cannot listen on {address}: give grpc_listen and https_listen different ports")
        return address


_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
MAX_SUFFIX = 200


class ExternalTrustSettings(SettingsGroup):
    """Names of the hub, and credentials of others that it believes."""

    client_ca_file: Path | None = Field(
        None,
        description="CAs of others, in PEM, whose client certificates open the HTTPS door too: for people and tools, never for "
        "agents. Read again whenever it changes.",
    )
    client_ca_groups: Words = Field(
        (),
        description="The groups (O) that count in certificates of --client-ca-file; all others in them are left out. "
        "Names that begin with system: never count.",
    )
    api_group_suffix: str = Field(
        GROUP_SUFFIX,
        description="What the hub's API groups end in: cluster., addon. and hub. come before it. Fixed at the first start; "
        "another one than the default lets several hubs' groups be told apart, and shuts out OCM's own agents.",
    )
    management_cluster: str | None = Field(
        None,
        description="The Kubernetes cluster that has the hub as an aggregated API server: a kubeconfig for it, or the word "
        "in-cluster. Its front proxy is believed, its tokens and its rights count for those whom it knows.",
    )
    https_proxies: Words = Field(
        (),
        description="Networks (CIDR) of balancers before the HTTPS door that send the PROXY protocol, version 1 or 2: the "
        "addresses that they name count in limits and audit records. A header from anybody else ends the connection.",
    )
    serving_names: Words = Field((), description="More host names and addresses for the serving certificate.")

    @field_validator("api_group_suffix")
    @classmethod
    def _is_a_domain(cls, suffix: str) -> str:
        if len(suffix) > MAX_SUFFIX or not _DOMAIN.fullmatch(suffix):
            raise ValueError(f'"{suffix}" can end no API group: write a domain of two labels or more, such as hub.example.com')
        return suffix

    @field_validator("https_proxies")
    @classmethod
    def _are_networks(cls, networks: tuple[str, ...]) -> tuple[str, ...]:
        for network in networks:
            try:
                ip_network(network)
            except ValueError:
                raise ValueError(f'"{network[:80]}" is no network: write 10.0.0.0/8, fd00::/8 or one address') from None
        return networks
