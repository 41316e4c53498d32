"""Settings of the agent: flags override the environment (`SPOKE_*`), which overrides a YAML file. All errors are reported.

Flags, environment and file have the same names: `--cluster-name`, `SPOKE_CLUSTER_NAME`, `cluster_name` (or `cluster-name`).

Feature gates have Open Cluster Management's names and defaults:

ClusterClaim         on    ClusterClaims are reported
ClusterProperty      off   ClusterProperties (about.k8s.io) are reported; for equal names the property overrides the claim
AddonManagement      on    add-ons get certificates and tokens, and their leases are checked
MultipleHubs         off   without effect: an agent with several bootstrap kubeconfigs has several hubs
V1beta1CSRAPICompatibility  off   cannot be switched on: no supported API server serves that version
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
    model_validator,
)

from machinery import identity
from machinery.durations import format_duration, parse_duration
from machinery.election import KUBERNETES, Timings
from machinery.errors import InvalidError
from machinery.meta.selectors import valid_label_key, valid_label_value
from machinery.observability import telemetry
from machinery.settings import load_settings

_FIELDS = {"ClusterClaim": "cluster_claim", "ClusterProperty": "cluster_property", "AddonManagement": "addon_management"}
_WITHOUT_EFFECT = ("MultipleHubs",)
_GONE = ("V1beta1CSRAPICompatibility",)
KNOWN = (*_FIELDS, *_WITHOUT_EFFECT, *_GONE)
_WORDS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


@dataclass(frozen=True, slots=True)
class FeatureGates:
    cluster_claim: bool = True
    cluster_property: bool = False
    addon_management: bool = True


def gates_of(overrides: Mapping[str, str]) -> FeatureGates:
    """The defaults with `overrides`. Raises InvalidError for an unknown gate, and for a value that is not a boolean."""
    gates = FeatureGates()
    for name, text in overrides.items():
        if name not in KNOWN:
            raise InvalidError(f'there is no feature gate "{name}" of an agent; there are {", ".join(KNOWN)}')
        value = _WORDS.get(text.strip().lower())
        if value is None:
            raise InvalidError(f'feature gate {name} is "{text}", not true or false')
        if name in _GONE and value:
            raise InvalidError(
                f"feature gate {name} cannot be switched on: no supported API server has that version of the API"
            )
        if name in _FIELDS:
            gates = replace(gates, **{_FIELDS[name]: value})
    return gates


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
DEFAULT_NAMESPACE = "open-cluster-management-agent"
ADDON_NAMESPACE = "open-cluster-management-agent-addon"
SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PORT = re.compile(r"[0-9]{1,5}")
_SECONDS = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def _duration(value: Any) -> Any:
    """Parse `90s`, `1m30s`, `500ms`, `2h`, or a number of seconds. Raises ValueError."""
    if isinstance(value, timedelta):
        return value
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("must be a duration, such as 60s")  # noqa: TRY004 - pydantic takes a ValueError
    text = str(value).strip()
    sign, positive = (-1, text[1:]) if text.startswith("-") else (1, text)
    return sign * parse_duration(f"{positive}s" if _SECONDS.fullmatch(text) else positive)


def _listed(value: Any) -> Any:
    """Split a comma-separated text, a path, or a list of them into parts."""
    if isinstance(value, str | Path):
        return [part.strip() for part in str(value).split(",") if part.strip()]
    if isinstance(value, list | tuple):
        return [part for each in value for part in (_listed(each) if isinstance(each, str | Path) else [each])]
    return value


def _mapped(value: Any) -> Any:
    """Parse `a=b,c=d` as a mapping."""
    if not isinstance(value, str):
        return value
    return dict(part.split("=", 1) for part in _listed(value) if "=" in part)


def _labels(labels: dict[str, str]) -> dict[str, str]:
    wrong = [f"{key}={value}" for key, value in labels.items() if not (valid_label_key(key) and valid_label_value(value))]
    if wrong:
        raise ValueError(f"not labels as Kubernetes has them: {', '.join(wrong)}")
    return labels


def _account(text: str) -> str:
    namespace, _, name = text.partition("/")
    if text and (not namespace or not name or "/" in name):
        raise ValueError(f'"{text}" is no service account: write NAMESPACE/NAME')
    return text


def _gates(told: dict[str, str]) -> dict[str, str]:
    try:
        gates_of(told)
    except InvalidError as error:
        raise ValueError(error.message) from None
    return told


def _driver(name: Any) -> Any:
    """Rejects `awsirsa`, because OCM's agent treats every unknown driver as csr."""
    if name == "awsirsa":
        raise ValueError("AWS IRSA is not served: leave it on auto, or take grpc or csr")
    return name or "auto"


def _at_least(least: timedelta = timedelta()) -> Callable[[timedelta], timedelta]:
    """Lower bound of a duration. Pydantic's own bounds print durations in Python's notation."""

    def checked(duration: timedelta) -> timedelta:
        if duration < least:
            raise ValueError(f"must be at least {format_duration(least)}")
        return duration

    return checked


def _positive(duration: timedelta) -> timedelta:
    if duration <= timedelta():
        raise ValueError("must be longer than 0s")
    return duration


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Mapped = Annotated[dict[str, str], BeforeValidator(_mapped)]
Paths = Annotated[tuple[Path, ...], BeforeValidator(_listed)]


def own_namespace(service_account: Path = SERVICE_ACCOUNT) -> str:
    """The namespace of this pod; outside of a pod, OCM's default."""
    try:
        return (service_account / "namespace").read_text().strip() or DEFAULT_NAMESPACE
    except OSError:
        return DEFAULT_NAMESPACE


class SpokeSettings(BaseModel):
    """The settings of `spoke run`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bootstrap_kubeconfig_secret: Names = ()
    bootstrap_kubeconfig: Annotated[Paths, Field(validate_default=True)] = ()
    standby_registration: bool = True
    unaccepted_hub: Literal["skip", "wait"] = "skip"
    fail_back_after: Annotated[Duration, AfterValidator(_at_least())] = timedelta()
    hub_timeout: Annotated[Duration, AfterValidator(_at_least())] = timedelta(milliseconds=1500)
    hub_give_up_after: Annotated[Duration, AfterValidator(_at_least())] = timedelta(minutes=10)
    hub_keepalive: Annotated[Duration, AfterValidator(_at_least(timedelta(seconds=5)))] = timedelta(seconds=10)
    hub_keepalive_timeout: Annotated[Duration, AfterValidator(_positive)] = timedelta(seconds=5)
    hub_silence: Annotated[Duration, AfterValidator(_at_least(timedelta(seconds=1)))] = timedelta(seconds=5)
    kubeconfig: Path | None = None
    spoke_kubeconfig: Path | None = None
    cluster_name: str = ""
    agent_id: str = ""
    hub_kubeconfig_dir: Path | None = None
    component_namespace: str = Field(default_factory=own_namespace)
    health_listen: str = "127.0.0.1:0"
    cluster_healthcheck_period: Duration = timedelta(minutes=1)
    max_custom_cluster_claims: int = Field(default=20, ge=0)
    reserved_cluster_claim_suffixes: Names = ()
    spoke_external_server_urls: Names = ()
    spoke_external_ca: Path | None = None
    cluster_annotations: Mapped = Field(default_factory=dict)
    cluster_labels: Annotated[Mapped, AfterValidator(_labels)] = Field(default_factory=dict)
    feature_gates: Annotated[Mapped, AfterValidator(_gates)] = Field(default_factory=dict)
    addon_kubeclient_registration_auth: Literal["", "csr", "token"] = "csr"
    addon_token_expiration_seconds: int = Field(default=YEAR, ge=SHORTEST_TOKEN)
    addon_lease_check_period: Annotated[Duration, AfterValidator(_positive)] = timedelta(seconds=30)
    addon_namespaces: Names = (ADDON_NAMESPACE,)
    adopt_addon_secrets: bool = False
    addon_lease_grace: Annotated[Duration, AfterValidator(_positive)] = timedelta(minutes=5)
    client_cert_expiration_seconds: int = 0
    attestation_service_account: Annotated[str, AfterValidator(_account)] = ""
    registration_driver: Annotated[Literal["auto", "grpc", "csr"], BeforeValidator(_driver)] = "auto"
    proxy_url: str = Field(default="", repr=False)
    rejoin: bool = False
    leader_elect: bool = True
    leader_elect_resource_name: str = ""
    leader_elect_lease_duration: Duration = KUBERNETES.lease
    leader_elect_renew_deadline: Duration = KUBERNETES.renew_deadline
    leader_elect_retry_period: Duration = timedelta(seconds=5)  # Kubernetes' 2 s would cause most of an idle agent's load
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"
    trace_endpoint: Annotated[str, AfterValidator(lambda text: telemetry.endpoint(text) if text else "")] = ""
    trace_share: float = Field(default=1.0, ge=0, le=1)

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


def parse_address(text: str) -> tuple[str, int]:
    """Parse `host:port`. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not _PORT.fullmatch(port) or int(port) > 65535:  # noqa: PLR2004 - the largest port
        raise ValueError(f'"{text[:80]}" is not an address such as 127.0.0.1:8000')
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - an address without host is asked for that way


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
