"""Settings of the extensions, and of a hub with all of them."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from hub.settings import ENVIRONMENT_PREFIX, HubSettings
from hub.settings.fields import Address, Count, ListenAddress, OptionalListenAddress, SettingsGroup, Words
from machinery.meta.urls import HTTPS_PORT, AllowedUrls, https_url_error
from machinery.settings import load_settings

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_PAIR = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?)=([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
MAX_LABEL = 63
RESERVED = "system:"
_SERVICE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9]*[a-z0-9])?")


class KubeCertAgentSettings(SettingsGroup):
    """Kube cert agent (off by default; its permissions in kube-system are equivalent to cluster-admin)."""

    kube_cert_agent: bool = Field(default=False)
    """Sign operators' logins with the CA of the Kubernetes cluster in which the hub runs (or of --management-cluster), so that
    they are valid for that cluster too. A pod on the controller-manager's node reads the CA key; this requires a control plane
    that runs in the cluster itself."""
    kube_cert_agent_image: str | None = None
    """Image of the kube cert agent: the hub's image. Required with --kube-cert-agent."""
    kube_cert_agent_namespace: str | None = None
    """Namespace of the kube cert agent. Default: the environment variable POD_NAMESPACE, set by the downward API."""
    kube_cert_agent_name: str = "hub-kube-cert-agent"
    """Name of the kube cert agent's Deployment; must be unique for each hub of a namespace."""
    kube_cert_agent_service_account: str = "default"
    """ServiceAccount of the kube cert agent. No token is mounted, and it needs no permissions."""
    kube_cert_agent_labels: Words = ()
    """Labels of the kube cert agent's Deployment, as KEY=VALUE."""
    kube_cert_agent_pull_secrets: Words = ()
    """Names of the image pull Secrets of the kube cert agent."""
    kube_cert_agent_priority_class: str | None = None
    """PriorityClass of the kube cert agent."""
    kube_cert_agent_server: str | None = None
    """URL at which operators reach the API server of that cluster. Default: the URL in the ConfigMap
    kube-public/cluster-info."""
    kubernetes_ca_groups: Words = ()
    """Groups that the HTTPS API reads from certificates of that CA. Empty: it rejects these certificates. Names
    that begin with system: are not allowed."""

    @field_validator("kube_cert_agent_name")
    @classmethod
    def _names_a_deployment(cls, name: str) -> str:
        if len(name) > MAX_LABEL or not _LABEL.fullmatch(name):
            raise ValueError(f'"{name[:80]}" is not the name of a Deployment: use 1 to 63 lower-case letters, digits and "-"')
        return name

    @field_validator("kube_cert_agent_labels")
    @classmethod
    def _are_labels(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [label for label in labels if not _PAIR.fullmatch(label)]
        if wrong:
            raise ValueError(f'"{wrong[0][:80]}" is not a label: write KEY=VALUE')
        return labels

    @field_validator("kubernetes_ca_groups")
    @classmethod
    def _are_not_reserved(cls, groups: tuple[str, ...]) -> tuple[str, ...]:
        reserved = [group for group in groups if group.startswith(RESERVED)]
        if reserved:
            raise ValueError(f'"{reserved[0][:80]}" is not allowed: groups that begin with {RESERVED} are Kubernetes\' own')
        return groups

    @model_validator(mode="after")
    def _can_be_deployed(self) -> Self:
        if self.kube_cert_agent and not self.kube_cert_agent_image:
            raise ValueError("kube_cert_agent needs kube_cert_agent_image: the image of its pod, which is the hub's own")
        if self.kubernetes_ca_groups and not self.kube_cert_agent:
            raise ValueError("kubernetes_ca_groups needs kube_cert_agent: without it no CA of a cluster is known")
        return self


class AggregationSettings(SettingsGroup):
    """The hub as an aggregated API server of --management-cluster."""

    aggregation_service: str | None = None
    """NAMESPACE/NAME of the Service through which --management-cluster reaches the hub. The hub keeps the caBundle of its
    APIServices up to date."""

    @field_validator("aggregation_service")
    @classmethod
    def _names_a_service(cls, service: str | None, seen: ValidationInfo) -> str | None:
        if service is not None and not _SERVICE.fullmatch(service):
            raise ValueError(f'"{service}" is not the name of a Service: write NAMESPACE/NAME')
        if service is not None and seen.data.get("management_cluster") is None:
            raise ValueError("needs management_cluster too: the cluster whose APIServices are updated")
        return service


class AttestationSettings(SettingsGroup):
    """Attestation of managed clusters."""

    attestation: Literal["by-credential", "required"] = "by-credential"
    """by-credential: a cluster must attest its identity if its bootstrap credential requires it; required: at every first
    registration. Agents with the driver csr cannot attest and are rejected with required."""
    attestation_issuers: Path | None = None
    """YAML file with the OpenID Connect issuers of managed clusters, for bootstrap credentials that name none. Read at each
    registration. See docs/how-to/attestation.md."""
    attestation_allowed_issuers: Words = ()
    """Issuers whose keys the hub fetches if a bootstrap credential names them without keys: complete https:// URLs, or
    https://HOST[:PORT] for all issuers of a host; *.HOST matches subdomains. Keys must come from the same host or a listed one.
    Issuers in --attestation-issuers need no entry. Empty: none."""
    attestation_audience: str = ""
    """Audience of clusters' tokens. Empty: urn:uuid:<the hub's id>, so that no other hub accepts them."""

    @field_validator("attestation_allowed_issuers")
    @classmethod
    def _are_addresses(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for entry in entries:
            if not AllowedUrls((entry,)).allow(entry.replace("//*.", "//any.", 1)) or https_url_error(entry) is not None:
                examples = "https://oidc.example.org/edge1 or https://*.example.org"
                raise ValueError(f'"{entry[:200]}" is not an https:// address, such as {examples}')
        return entries


class ClusteradmSettings(SettingsGroup):
    """OCM's command line clusteradm (off by default)."""

    clusteradm: bool = Field(default=False)
    """Serve `clusteradm get token`, `join`, `accept` and `delete token`. A token is a bootstrap credential for any cluster
    name, valid for at most --bootstrap-lifetime. See docs/how-to/clusteradm.md."""
    clusteradm_token_uses: Count = 10
    """Number of agents that may get a certificate with one token of `clusteradm get token`. 0: no limit."""
    clusteradm_public_cluster_info: bool = Field(default=False)
    """Whether callers without a credential may read the ConfigMap kube-public/cluster-info, which has the hub's address and CA.
    `clusteradm join` reads it with its token and does not need this."""

    @model_validator(mode="after")
    def _is_served(self) -> Self:
        if self.clusteradm_public_cluster_info and not self.clusteradm:
            raise ValueError("clusteradm_public_cluster_info needs clusteradm: without it the hub has no cluster-info")
        return self


class OcmGrpcSettings(SettingsGroup):
    """OCM's agents with the registration driver grpc (off by default)."""

    ocm_grpc_listen: OptionalListenAddress = None
    """Listen address for OCM's agents with --registration-auth=grpc (CloudEvents over gRPC): host:port. It has the hub's
    serving certificate. Default: none, such agents cannot connect. See docs/how-to/from-ocm.md."""

    @field_validator("ocm_grpc_listen")
    @classmethod
    def _has_own_port(cls, address: Address | None, seen: ValidationInfo) -> Address | None:
        if address is not None and address in (seen.data.get("grpc_listen"), seen.data.get("https_listen")):
            raise ValueError(f"two doors cannot listen on {address}: give ocm_grpc_listen a port of its own")
        return address


class TokenLoginSettings(SettingsGroup):
    """Logins with tokens of external issuers."""

    login_rate: Count = 20
    """Maximum number of logins (TokenCredentialRequest), and of requests that sign in to the console, per second from one
    address. 0: no limit."""
    login_burst: Count = 200
    """Number of logins from one address that are permitted as a burst, above --login-rate."""
    audit_login_names: bool = Field(default=False)
    """Whether audit records of logins, successful or not, contain the user and groups of the token."""


def _switch(value: object) -> object:
    """Returns "on" or "off" for a boolean, because YAML reads these words as booleans. Other values stay."""
    words = {"true": "on", "false": "off"}
    return words.get(str(value).lower(), value) if isinstance(value, bool | str) else value


class ConsoleSettings(SettingsGroup):
    """The console in a browser."""

    console: Annotated[Literal["off", "read-only", "on"], BeforeValidator(_switch)] = "off"
    """Whether the HTTPS API serves the console at /console/: off; read-only: the hub refuses writes of the console; on.
    Operators open it with `hubctl console`, or sign in at --console-url. See docs/how-to/console.md."""
    console_listen: ListenAddress = Address("127.0.0.1", 9443)
    """Listen address of the console's own listener, at which people sign in by OpenID Connect: host:port. It opens if
    --console-cert-file is set."""
    console_cert_file: Path | None = None
    """Certificate of --console-listen, in PEM, followed by its chain; browsers must trust it. Needs --console-key-file,
    --console-url and --console-authenticator. Reloaded when the file changes."""
    console_key_file: Path | None = None
    """Private key of --console-cert-file, in PEM."""
    console_url: str | None = None
    """URL of the console in browsers: https://HOST[:PORT]. The issuer must allow the redirect to URL/console/callback."""
    console_authenticator: str | None = None
    """Name of the JWTAuthenticator of the people who sign in. Its audience is the client id of the console at the issuer."""
    console_client_secret_file: Path | None = None
    """File with the client secret of the console at the issuer; read at each sign-in. Without it the console is a public
    client."""
    console_scopes: Words = ()
    """Scopes to request in addition to openid, such as email,groups."""

    @field_validator("console_url")
    @classmethod
    def _is_an_origin(cls, url: str | None) -> str | None:
        if url is None:
            return None
        parts = urlsplit(url)
        if https_url_error(url) is not None or parts.path not in ("", "/"):
            raise ValueError(f'"{url[:200]}" is not an origin: write https://HOST or https://HOST:PORT')
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return f"https://{host}" + (f":{parts.port}" if parts.port not in (None, HTTPS_PORT) else "")

    @model_validator(mode="after")
    def _has_all_parts_of_a_listener(self) -> Self:
        parts = ("console_cert_file", "console_key_file", "console_url", "console_authenticator")
        missing = [part for part in parts if not getattr(self, part)]
        if missing and len(missing) < len(parts):
            raise ValueError(f"the console's own listener needs {', '.join(missing)} too")
        if not missing and self.console == "off":
            raise ValueError("console_cert_file needs console: on or read-only")
        return self


class Settings(
    ConsoleSettings,
    KubeCertAgentSettings,
    AggregationSettings,
    AttestationSettings,
    ClusteradmSettings,
    OcmGrpcSettings,
    TokenLoginSettings,
    HubSettings,
):
    """Settings of a hub with all extensions."""


def load(flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings from flags, file and environment (None: the process's). Raises InvalidError with every problem."""
    return load_settings(Settings, ENVIRONMENT_PREFIX, flags, file, environment)
