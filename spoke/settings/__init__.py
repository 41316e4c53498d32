"""Settings of the agent: flags override the environment (`SPOKE_*`), which overrides a YAML file. All errors are reported.

Flags, environment and file have the same names: `--cluster-name`, `SPOKE_CLUSTER_NAME`, `cluster_name` (or `cluster-name`).

A field's `title` is the placeholder of its value in the help, its `description` the text; `spoke.cli.flags` makes the flags.
"""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from machinery import identity
from machinery.election import KUBERNETES, Timings
from machinery.errors import InvalidError
from machinery.settings import load_settings
from spoke.settings.fields import (
    DriverName,
    Duration,
    Gates,
    Labels,
    Mapped,
    Names,
    NotNegative,
    Paths,
    Positive,
    ServiceAccount,
    TraceEndpoint,
    at_least,
    own_namespace,
    parse_address,
)

PREFIX = "SPOKE_"
ALIASES = {
    "bootstrap_kubeconfigs": "bootstrap_kubeconfig",
    "spoke_cluster_name": "cluster_name",
    "registration_auth": "registration_driver",
    "hub_connection_timeout_seconds": "hub_timeout",
}
"""Maps Open Cluster Management's names to ours, in environment and file."""
LEASE = "spoke-agent"
SHORTEST_CERTIFICATE = 3600
SHORTEST_TOKEN = 600
YEAR = 365 * 24 * 3600
ADDON_NAMESPACE = "open-cluster-management-agent-addon"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class SpokeSettings(BaseModel):
    """The settings of `spoke run`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap_kubeconfig_secret: Names = Field(
        default=(),
        title="NAME",
        description="the same from the key `kubeconfig` of a secret in the component namespace, repeatable; they "
        "follow the files",
    )
    bootstrap_kubeconfig: Paths = Field(
        default=(),
        validate_default=True,
        title="FILE",
        description="the hub, and the credential to ask it for a certificate; several, in the order they are "
        "preferred, by repeating it or with commas",
    )
    standby_registration: bool = Field(
        default=True,
        title="BOOL",
        description="false: register at the chosen hub alone, at the others when they are chosen (default: true, at "
        "all of them)",
    )
    kubeconfig: Path | None = Field(
        default=None, title="FILE", description="the cluster that holds the agent's secrets (default: the one this runs in)"
    )
    spoke_kubeconfig: Path | None = Field(
        default=None, title="FILE", description="the cluster to report, if that is another one (default: as --kubeconfig)"
    )
    hub_timeout: NotNegative = Field(
        default=timedelta(milliseconds=1500),
        title="TIME",
        description="how long a hub that is lost is tried again before another takes over (1500ms; at most, the time is drawn)",
    )
    fail_back_after: NotNegative = Field(
        default=timedelta(),
        title="TIME",
        description="go back to a hub further up in the list once it has been ready for so long (0: stay)",
    )
    unaccepted_hub: Literal["skip", "wait"] = Field(
        default="skip",
        title="HOW",
        description="skip: a hub that has not accepted this cluster gets the session where no other would do "
        "(default); wait: it is as good as one that has",
    )
    hub_give_up_after: NotNegative = Field(
        default=timedelta(minutes=10),
        title="TIME",
        description="with --standby-registration=false: how long a hub must be lost before the agent registers at the "
        "next (10m)",
    )
    hub_keepalive: Annotated[Duration, AfterValidator(at_least(timedelta(seconds=5)))] = Field(
        default=timedelta(seconds=10),
        title="TIME",
        description="an idle connection over gRPC is tried so often (10s, not below 5s) ...",
    )
    hub_keepalive_timeout: Positive = Field(
        default=timedelta(seconds=5), title="TIME", description="... and lost when nothing is heard for so long (5s)"
    )
    hub_silence: Annotated[Duration, AfterValidator(at_least(timedelta(seconds=1)))] = Field(
        default=timedelta(seconds=5),
        title="TIME",
        description="a beat that is not acknowledged for so long ends a session (5s)",
    )
    registration_driver: DriverName = Field(
        default="auto",
        title="DRIVER",
        description="grpc, csr (the Kubernetes API alone, also to an Open Cluster Management hub), or auto: as the "
        "kubeconfig has it",
    )
    proxy_url: str = Field(
        default="",
        repr=False,
        title="URL",
        description="HTTP CONNECT proxy (default: the kubeconfig's proxy-url, else HTTPS_PROXY and NO_PROXY); one "
        "with a password belongs into SPOKE_PROXY_URL or the file, not here",
    )
    cluster_name: str = Field(
        default="",
        title="NAME",
        description="name on the hub (default: as before, else that of the bootstrap kubeconfig, else a UUID)",
    )
    agent_id: str = Field(
        default="", title="ID", description="name of this agent (default: as before, else five random letters)"
    )
    component_namespace: str = Field(
        default_factory=own_namespace,
        title="NAME",
        description="namespace of the secrets (default: the one this runs in, else open-cluster-management-agent)",
    )
    hub_kubeconfig_dir: Path | None = Field(
        default=None, title="DIR", description="directory that mirrors the hub kubeconfig secret"
    )
    client_cert_expiration_seconds: int = Field(
        default=0, title="N", description="wanted life of certificates, at least 3600 (0: the hub decides)"
    )
    attestation_service_account: ServiceAccount = Field(
        default="",
        title="NAMESPACE/NAME",
        description="the service account of this cluster by whose token it proves to a hub which one it is (default: "
        "this pod's)",
    )
    cluster_healthcheck_period: Duration = Field(
        default=timedelta(minutes=1), title="TIME", description="how often everything is looked at anew (1m)"
    )
    max_custom_cluster_claims: int = Field(
        default=20, ge=0, title="N", description="custom cluster claims beyond this are left out (20)"
    )
    reserved_cluster_claim_suffixes: Names = Field(
        default=(),
        title="A,B",
        description="claims whose names end so are never left out",
    )
    spoke_external_server_urls: Names = Field(
        default=(),
        title="URL,URL",
        description="where others reach this cluster's API (https)",
    )
    spoke_external_ca: Path | None = Field(default=None, title="FILE", description="CA bundle that verifies those URLs")
    cluster_labels: Labels = Field(
        default_factory=dict, title="K=V,K=V", description="labels for the cluster when it joins, as far as the hub allows"
    )
    cluster_annotations: Mapped = Field(
        default_factory=dict, title="K=V,K=V", description="annotations (agent.open-cluster-management.io/...)"
    )
    addon_kubeclient_registration_auth: Literal["", "csr", "token"] = Field(
        default="csr",
        title="HOW",
        description="how add-ons identify themselves at the hub: csr (by certificate, the default) or token (of a "
        "ServiceAccount)",
    )
    addon_token_expiration_seconds: int = Field(
        default=YEAR, ge=SHORTEST_TOKEN, title="N", description="wanted life of those tokens, 600 at least (a year)"
    )
    addon_namespaces: Names = Field(
        default=(ADDON_NAMESPACE,),
        title="A,B",
        description="namespaces in which add-ons' secrets are written (open-cluster-management-agent-addon); never "
        "the agent's own",
    )
    adopt_addon_secrets: bool = Field(
        default=False,
        title="BOOL",
        description="take over add-ons' secrets that Open Cluster Management's agent has created (false: they are "
        "left as they are)",
    )
    addon_lease_check_period: Positive = Field(
        default=timedelta(seconds=30), title="TIME", description="how often the leases of add-ons are looked at (30s)"
    )
    addon_lease_grace: Positive = Field(
        default=timedelta(minutes=5), title="TIME", description="how long a renewal of such a lease is good for (5m)"
    )
    rejoin: bool = Field(
        default=False, title="BOOL", description="join again after `spoke leave`, with the bootstrap kubeconfig that there was"
    )
    leader_elect: bool = Field(
        default=True,
        title="BOOL",
        description="of several processes of this agent, one works: the holder of its Lease in the component namespace (true)",
    )
    leader_elect_resource_name: str = Field(
        default="", title="NAME", description="name of that Lease (default: spoke-agent); one for each agent"
    )
    leader_elect_lease_duration: Duration = Field(
        default=KUBERNETES.lease,
        title="TIME",
        description="another process takes over when it was not renewed for so long (15s)",
    )
    leader_elect_renew_deadline: Duration = Field(
        default=KUBERNETES.renew_deadline,
        title="TIME",
        description="the holder stops when it could not renew for so long (10s)",
    )
    # Kubernetes' 2 s would cause most of an idle agent's load.
    leader_elect_retry_period: Duration = Field(
        default=timedelta(seconds=5), title="TIME", description="how often it is renewed, and looked at (5s)"
    )
    feature_gates: Gates = Field(
        default_factory=dict, title="NAME=BOOL,...", description="ClusterClaim, ClusterProperty, AddonManagement"
    )
    health_listen: str = Field(
        default="127.0.0.1:0",
        title="HOST:PORT",
        description="probes; port 0: any free one, which doctor and status find (127.0.0.1:0)",
    )
    log_format: Literal["json", "console"] = Field(default="json", title="FORMAT", description="json (default) or console")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", title="LEVEL", description="debug, info (default), warning or error"
    )
    trace_endpoint: TraceEndpoint = Field(
        default="", title="URL", description="collector for traces (OTLP over gRPC); without it: none"
    )
    trace_share: float = Field(
        default=1.0, ge=0, le=1, title="SHARE", description="the share of traces that is recorded; default 1.0"
    )

    @field_validator("bootstrap_kubeconfig")
    @classmethod
    def _some_hub(cls, files: tuple[Path, ...], known: ValidationInfo) -> tuple[Path, ...]:
        if not files and not known.data.get("bootstrap_kubeconfig_secret", True):
            raise ValueError("is required, or bootstrap-kubeconfig-secret: a file or a secret for each hub")
        return files

    @field_validator("cluster_name")
    @classmethod
    def _cluster_name(cls, name: str) -> str:
        return _named(identity.cluster_name, name)

    @field_validator("agent_id")
    @classmethod
    def _agent_id(cls, name: str) -> str:
        return _named(identity.agent_id, name)

    @field_validator("cluster_healthcheck_period")
    @classmethod
    def _period(cls, period: timedelta) -> timedelta:
        if period <= timedelta():
            raise ValueError("cluster healthcheck period must greater than zero")
        return period

    @field_validator("client_cert_expiration_seconds")
    @classmethod
    def _expiration(cls, seconds: int) -> int:
        if seconds and seconds < SHORTEST_CERTIFICATE:
            raise ValueError(f"client certificate expiration seconds must be 0 or at least {SHORTEST_CERTIFICATE}")
        return seconds

    @field_validator("spoke_external_server_urls")
    @classmethod
    def _urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        wrong = [url for url in urls if urlsplit(url).scheme != "https"]
        if wrong:
            raise ValueError("; ".join(f'"{url}" is invalid' for url in wrong))
        return urls

    @field_validator("health_listen")
    @classmethod
    def _listen(cls, address: str) -> str:
        parse_address(address)
        return address

    @property
    def lease_name(self) -> str:
        """Name of the agent's Lease in the component namespace, beside the secrets whose writes it guards."""
        return self.leader_elect_resource_name or LEASE

    @property
    def election_timings(self) -> Timings:
        """Raises InvalidError when the timings contradict each other."""
        retry = self.leader_elect_retry_period
        return Timings(self.leader_elect_lease_duration, self.leader_elect_renew_deadline, retry, poll=retry)

    @model_validator(mode="after")
    def _timings(self) -> Self:
        try:
            _ = self.election_timings
        except InvalidError as error:
            raise ValueError(error.message) from None
        return self

    @model_validator(mode="after")
    def _several(self) -> Self:
        told = self.feature_gates.get("MultipleHubs", "").strip().lower() in ("true", "t", "1")
        if told and len(self.bootstrap_kubeconfig) + len(self.bootstrap_kubeconfig_secret) < 2:  # noqa: PLR2004 - several
            raise ValueError("expect at least 2 bootstrap kubeconfigs with the feature gate MultipleHubs")
        return self

    @model_validator(mode="after")
    def _addon_namespaces(self) -> Self:
        if self.component_namespace in self.addon_namespaces:
            raise ValueError(f"addon-namespaces: {self.component_namespace} is the agent's own, where add-ons write nothing")
        return self

    @model_validator(mode="after")
    def _external_ca(self) -> Self:
        try:
            found = self.spoke_external_ca is None or self.spoke_external_ca.is_file()
        except OSError:  # the name is longer than names may be
            found = False
        if not found:
            raise ValueError(f"spoke external CA {str(self.spoke_external_ca)[:200]} is not a file")
        return self


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> SpokeSettings:
    """Merge and validate the settings of all three sources. Raises InvalidError with all errors."""
    return load_settings(SpokeSettings, PREFIX, flags, file, environment, aliases=ALIASES, separator="-")


def _named(rule: Any, name: str) -> str:
    if not name:
        return name
    try:
        return str(rule(name))
    except InvalidError as error:
        raise ValueError(error.message) from None
