"""Where a hub keeps what is its own, where its doors are, and which replica of it this is."""

from pathlib import Path

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from hub.settings.fields import Address, ListenAddress
from hub.settings.group import SECRET, SettingsGroup
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
