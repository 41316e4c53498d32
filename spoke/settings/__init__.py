"""Settings of the agent: flags override the environment (`SPOKE_*`), which overrides a YAML file. All errors are reported.

Flags, environment and file have the same names: `--cluster-name`, `SPOKE_CLUSTER_NAME`, `cluster_name` (or `cluster-name`).

`spoke.cli.flags` makes the flags. In their help, the `title` of a field is the placeholder for the value, and its docstring is
the text.
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
from spoke.settings import fields

PREFIX = "SPOKE_"
ALIASES = {
    "bootstrap_kubeconfigs": "bootstrap_kubeconfig",
    "spoke_cluster_name": "cluster_name",
    "registration_auth": "registration_driver",
    "hub_connection_timeout_seconds": "hub_timeout",
}
"""Maps Open Cluster Management's names to names of Muster, in environment and file."""
LEASE = "spoke-agent"
SHORTEST_CERTIFICATE = 3600
SHORTEST_TOKEN = 600
YEAR = 365 * 24 * 3600
ADDON_NAMESPACE = "open-cluster-management-agent-addon"


class SpokeSettings(BaseModel):
    """The settings of `spoke run`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    bootstrap_kubeconfig_secret: fields.Names = Field(default=(), title="NAME")
    """name of a Secret in the component namespace that contains a bootstrap kubeconfig in its key `kubeconfig`; may be
    repeated; these hubs follow the hubs of --bootstrap-kubeconfig"""
    bootstrap_kubeconfig: fields.Paths = Field(default=(), validate_default=True, title="FILE")
    """bootstrap kubeconfig: address of a hub, with the credential to register there; for several hubs repeat the flag or
    separate files by commas, the preferred hub first"""
    standby_registration: fields.Flag = True
    """true (default): register at all hubs; false: register only at the chosen hub, and at another one when it is chosen"""
    kubeconfig: Path | None = Field(default=None, title="FILE")
    """kubeconfig of the cluster that stores the agent's Secrets (default: in-cluster)"""
    spoke_kubeconfig: Path | None = Field(default=None, title="FILE")
    """kubeconfig of the managed cluster, if it is another cluster (default: the value of --kubeconfig)"""
    hub_timeout: fields.NotNegative = timedelta(milliseconds=1200)
    """maximum time for which the agent tries to reconnect to a lost hub before it changes to the next hub; the actual time is
    random (1200ms)"""
    fail_back_after: fields.NotNegative = timedelta()
    """return to a preferred hub after it has been ready for this time (0: stay)"""
    unaccepted_hub: Literal["skip", "wait"] = Field(default="skip", title="HOW")
    """skip (default): use a hub that has not accepted this cluster only if there is no other hub; wait: treat it like a hub
    that has accepted the cluster"""
    hub_give_up_after: fields.NotNegative = timedelta(minutes=10)
    """with --standby-registration=false: time for which a hub must be lost before the agent registers at the next hub (10m)"""
    hub_keepalive: Annotated[fields.Duration, AfterValidator(fields.at_least(timedelta(seconds=5)))] = timedelta(seconds=10)
    """interval of keepalive pings on an idle gRPC connection, at least 5s (10s)"""
    hub_keepalive_timeout: fields.Positive = timedelta(seconds=5)
    """time without an answer to a keepalive ping after which the connection is lost (5s)"""
    hub_silence: Annotated[fields.Duration, AfterValidator(fields.at_least(timedelta(seconds=2)))] = timedelta(seconds=5)
    """time without an acknowledgement of a beat after which the agent ends the session, at least 2s (5s); twice this time in a
    session that begins with a beat interval below 5s"""
    registration_driver: fields.DriverName = Field(default="auto", title="DRIVER")
    """grpc; csr (only the Kubernetes API; also works with an Open Cluster Management hub); or auto (default): as the bootstrap
    kubeconfig specifies"""
    proxy_url: str = Field(default="", repr=False, title="URL")
    """HTTP CONNECT proxy (default: proxy-url of the kubeconfig, else HTTPS_PROXY and NO_PROXY); if the URL contains a password,
    set it in SPOKE_PROXY_URL or the file of --config, not on the command line"""
    cluster_name: Annotated[str, AfterValidator(fields.named_by(identity.cluster_name))] = Field(default="", title="NAME")
    """cluster name at the hub (default: the stored name, else the name in the bootstrap kubeconfig, else a UUID)"""
    agent_id: Annotated[str, AfterValidator(fields.named_by(identity.agent_id))] = Field(default="", title="ID")
    """agent id (default: the stored id, else five random letters)"""
    component_namespace: str = Field(default_factory=fields.own_namespace, title="NAME")
    """namespace of the agent's Secrets (default: the pod's namespace, else open-cluster-management-agent)"""
    hub_kubeconfig_dir: Path | None = Field(default=None, title="DIR")
    """directory to which the agent mirrors its hub kubeconfig Secret"""
    client_cert_expiration_seconds: int = Field(default=0, title="N")
    """requested validity of client certificates in seconds, at least 3600 (0: the hub decides)"""
    attestation_service_account: fields.ServiceAccount = Field(default="", title="NAMESPACE/NAME")
    """ServiceAccount of this cluster whose token attests the cluster's identity (default: the pod's ServiceAccount)"""
    cluster_healthcheck_period: fields.Duration = timedelta(minutes=1)
    """interval at which the agent checks the complete status of the cluster; every fifth check also reports an unchanged status
    (1m)"""
    max_custom_cluster_claims: int = Field(default=20, ge=0, title="N")
    """maximum number of custom cluster claims that are reported (20)"""
    reserved_cluster_claim_suffixes: fields.Names = Field(default=(), title="A,B")
    """claims whose names have one of these suffixes are always reported"""
    spoke_external_server_urls: fields.Names = Field(default=(), title="URL,URL")
    """URLs (https) at which clients outside of this cluster reach its API server"""
    spoke_external_ca: Path | None = Field(default=None, title="FILE")
    """CA bundle that verifies those URLs"""
    cluster_labels: fields.Labels = Field(default_factory=dict, title="K=V,K=V")
    """labels to set on the cluster when it joins; the hub ignores labels that it does not allow"""
    cluster_annotations: fields.Mapped = Field(default_factory=dict, title="K=V,K=V")
    """annotations to set on the cluster (agent.open-cluster-management.io/...)"""
    addon_kubeclient_registration_auth: Literal["", "csr", "token"] = Field(default="csr", title="HOW")
    """how add-ons authenticate at the hub: csr (client certificate, default) or token (of a ServiceAccount)"""
    addon_token_expiration_seconds: int = Field(default=YEAR, ge=SHORTEST_TOKEN, title="N")
    """requested validity of add-on tokens in seconds, at least 600 (one year)"""
    addon_namespaces: fields.Names = Field(default=(ADDON_NAMESPACE,), title="A,B")
    """namespaces in which the agent writes Secrets of add-ons, never its own namespace (open-cluster-management-agent-addon)"""
    adopt_addon_secrets: fields.Flag = False
    """take over add-on Secrets that Open Cluster Management's agent created (false: leave them unchanged)"""
    addon_lease_check_period: fields.Positive = timedelta(seconds=30)
    """interval at which the agent checks the Leases of add-ons (30s)"""
    addon_lease_grace: fields.Positive = timedelta(minutes=5)
    """time for which an add-on's Lease is valid after its last renewal (5m)"""
    rejoin: fields.Flag = False
    """join again after `spoke leave`, with the existing bootstrap kubeconfig"""
    leader_elect: fields.Flag = True
    """run leader election among the processes of this agent, by a Lease in the component namespace; only the leader works
    (true)"""
    leader_elect_resource_name: str = Field(default="", title="NAME")
    """name of this Lease, different for each agent (default: spoke-agent)"""
    leader_elect_lease_duration: fields.Duration = KUBERNETES.lease
    """time without a renewal after which another process takes over the Lease (15s)"""
    leader_elect_renew_deadline: fields.Duration = KUBERNETES.renew_deadline
    """time after which a leader that cannot renew the Lease stops working (10s)"""
    # Kubernetes uses 2 s, which would cause most of the load of an idle agent.
    leader_elect_retry_period: fields.Duration = timedelta(seconds=5)
    """interval at which the leader renews the Lease and other processes check it (5s)"""
    feature_gates: fields.Gates = Field(default_factory=dict, title="NAME=BOOL,...")
    """feature gates: ClusterClaim, ClusterProperty, AddonManagement"""
    health_listen: str = Field(default="127.0.0.1:0", title="HOST:PORT")
    """listen address of the probes; port 0: any free port, which `spoke doctor` and `spoke status` discover (127.0.0.1:0)"""
    log_format: Literal["auto", "json", "console"] = Field(default="auto", title="FORMAT")
    """json; console: readable text with next steps; auto (default): console if standard error is a terminal, else json"""
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", title="LEVEL")
    """debug, info (default), warning or error"""
    trace_endpoint: fields.TraceEndpoint = Field(default="", title="URL")
    """collector that receives traces by OTLP over gRPC (default: no traces)"""
    trace_share: float = Field(default=1.0, ge=0, le=1, title="SHARE")
    """share of traces that is recorded, 0 to 1 (1.0)"""

    @field_validator("bootstrap_kubeconfig")
    @classmethod
    def _some_hub(cls, files: tuple[Path, ...], known: ValidationInfo) -> tuple[Path, ...]:
        if not files and not known.data.get("bootstrap_kubeconfig_secret", True):
            raise ValueError("is required, or bootstrap-kubeconfig-secret: a file or a secret for each hub")
        return files

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
        fields.parse_address(address)
        return address

    @property
    def lease_name(self) -> str:
        """Name of the agent's Lease in the component namespace. Only the holder of the Lease writes the agent's secrets."""
        return self.leader_elect_resource_name or LEASE

    @property
    def election_timings(self) -> Timings:
        """Return the timings of the leader election. Raises InvalidError if they contradict each other."""
        retry = self.leader_elect_retry_period
        return Timings(self.leader_elect_lease_duration, self.leader_elect_renew_deadline, retry, poll=retry)

    @model_validator(mode="after")
    def _agree(self) -> Self:
        try:
            _ = self.election_timings
        except InvalidError as error:
            raise ValueError(error.message) from None
        wanted = self.feature_gates.get("MultipleHubs", "").strip().lower() in ("true", "t", "1")
        if wanted and len(self.bootstrap_kubeconfig) + len(self.bootstrap_kubeconfig_secret) < 2:  # noqa: PLR2004 - several
            raise ValueError("expect at least 2 bootstrap kubeconfigs with the feature gate MultipleHubs")
        if self.component_namespace in self.addon_namespaces:
            raise ValueError(f"addon-namespaces: {self.component_namespace} is the agent's own, where add-ons write nothing")
        try:
            found = self.spoke_external_ca is None or self.spoke_external_ca.is_file()
        except OSError:  # the name is too long for a file
            found = False
        if not found:
            raise ValueError(f"spoke external CA {str(self.spoke_external_ca)[:200]} is not a file")
        return self


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None) -> SpokeSettings:
    """Merge and validate the settings of all three sources. Raises InvalidError with all errors."""
    return load_settings(SpokeSettings, PREFIX, flags, file, environment, aliases=ALIASES, separator="-")
