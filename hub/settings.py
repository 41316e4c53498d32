"""What an operator may decide about a hub: flags over `HUB_*` environment variables over a YAML file.

One flat list of names for all three: the setting `grpc_listen` is the flag `--grpc-listen`, the variable `HUB_GRPC_LISTEN` and
the key `grpc_listen` (or `grpc-listen`) of the file. What is wrong is told at once and in full, each problem with its place.
"""

import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from hub.fields import Address, Count, Duration, ListenAddress, NoDuration, Words
from machinery.directory import default_data_dir
from machinery.election.timings import KUBERNETES, Timings
from machinery.errors import InvalidError
from machinery.logs import LogFormat
from machinery.product import GROUP_SUFFIX

ENVIRONMENT_PREFIX = "HUB_"
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+")
MAX_SUFFIX = 200
_SERVICE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?/[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_GLOB = re.compile(r"[a-z0-9*?\[\]!-]+")


class SettingsError(Exception):
    """The settings are wrong: `problems` are sentences, each beginning with its place."""

    def __init__(self, problems: Sequence[str]) -> None:
        count = "one problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__("\n".join([f"the settings have {count}:", *(f"  - {problem}" for problem in problems)]))
        self.problems = tuple(problems)


class Settings(BaseSettings):
    """All settings of a hub. The descriptions are the program's help."""

    model_config = SettingsConfigDict(
        env_prefix=ENVIRONMENT_PREFIX, env_ignore_empty=True, extra="forbid", frozen=True, arbitrary_types_allowed=True
    )

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
    aggregation_service: str | None = Field(
        None,
        description="NAMESPACE/NAME of the Service by which --management-cluster reaches the hub: the caBundle of its "
        "APIServices is kept right.",
    )
    serving_names: Words = Field((), description="More host names and addresses for the serving certificate.")
    auto_approve: Words = Field(
        (),
        description="Cluster names, as globs, that are accepted and whose first certificate is approved without a human. "
        "Empty: every cluster waits for `hubctl accept` and `hubctl certificate approve`.",
    )
    default_cluster_set: bool = Field(
        True,  # noqa: FBT003 - a field's default
        description="The cluster sets default and global are there, and clusters without a set are put into default "
        "(Open Cluster Management's gate DefaultClusterSet).",
    )
    cluster_profiles: bool = Field(
        False,  # noqa: FBT003 - a field's default
        description="Accepted clusters are shown as ClusterProfiles (multicluster.x-k8s.io) where their sets are bound "
        "(Open Cluster Management's gate ClusterProfile).",
    )
    default_lease_duration: Duration = Field(
        timedelta(seconds=60), description="A new cluster's lease. Silence of five leases makes its availability Unknown."
    )
    beat_interval: Duration = Field(
        timedelta(seconds=10), description="How often agents beat; more often for clusters with a shorter lease."
    )
    flush_window: Duration = Field(
        timedelta(seconds=1), description="Heartbeats are collected this long, then stored in one statement and acknowledged."
    )
    agent_lifetime: Duration = Field(timedelta(days=30), description="Validity of an agent's certificate.")
    recovery_lifetime: Duration = Field(timedelta(days=90), description="Validity of the recovery certificate beside it.")
    recovery: Literal["automatic", "manual"] = Field(
        "automatic",
        description="Whether an agent whose certificate expired while it was off comes back with its recovery certificate by "
        "itself, or waits for `hubctl certificate approve`.",
    )
    bootstrap_lifetime: Duration = Field(timedelta(hours=1), description="Validity of a bootstrap credential, unless it says.")
    serving_lifetime: Duration = Field(timedelta(days=365), description="Validity of the doors' certificate.")
    ca_lifetime: Duration = Field(timedelta(days=3650), description="Validity of the hub's CA.")
    watch_window: Duration = Field(timedelta(hours=1), description="A watch can resume from changes as old as this.")
    event_lifetime: Duration = Field(timedelta(hours=1), description="Events are kept this long after they were last seen.")
    finished_requests: Duration = Field(timedelta(hours=1), description="Decided certificate requests are kept this long.")
    deletion_deadline: Duration = Field(
        timedelta(hours=1),
        description="What belongs to a deleted cluster goes in the order of its priorities; after this long all of it at once, "
        "and an operator is told. Nothing is given up but with `hubctl delete cluster NAME --force`.",
    )
    start_timeout: Duration = Field(
        timedelta(seconds=60),
        description="Opening and migrating the database may take this long, and everything until the doors open twice as long.",
    )
    livez_grace: NoDuration = Field(
        timedelta(), description="For this long after a start /livez passes over what has not finished starting."
    )
    max_requests_inflight: Count = Field(
        400, description="Reads that the HTTPS door works on at once, beside those of agents. More wait, then get 429. 0: any."
    )
    max_mutating_requests_inflight: Count = Field(200, description="Writes, likewise.")
    max_lifelines_inflight: Count = Field(
        100, description="What agents need to stay, at both doors: leases and renewals. A level of its own. 0: any number."
    )
    max_registrations_inflight: Count = Field(100, description="Calls with bootstrap credentials, at both doors, likewise.")
    max_session_starts_inflight: Count = Field(100, description="Starts of agents' sessions, likewise.")
    max_status_reports_inflight: Count = Field(100, description="Agents' reports on their clusters, at both doors, likewise.")
    max_sessions_per_cluster: Count = Field(
        10,
        description="Sessions that the agents of one cluster have open; one that takes the place of another counts "
        "beside it for a moment. 0: any number.",
    )
    identity_rate: Count = Field(
        200, description="Requests a second of one identity, at either door; system:masters may ask faster. 0: any number."
    )
    identity_burst: Count = Field(1000, description="Requests of one identity that may come at once.")
    audit_policy_file: Path | None = Field(
        None,
        description="The audit policy, as kube-apiserver has it (audit.k8s.io/v1 Policy, YAML). Without it: what changes "
        "something or reads a secret, but no beats, status reports, events and reviews.",
    )
    audit_log_path: str | None = Field(
        None, description="Audit records go to this file too, as lines of JSON; - for standard output. Always: to the database."
    )
    audit_retention: Duration = Field(timedelta(days=90), description="Audit records in the database are kept this long.")
    clock_skew_limit: NoDuration = Field(
        timedelta(),
        description="A cluster whose clock is so far from the hub's is reported as out of sync; nothing else follows. 0s: five "
        "of its lease durations.",
    )
    taint_delay: NoDuration = Field(
        timedelta(seconds=30),
        description="A silent cluster is tainted, and its alarm told, this long after its availability became Unknown: what "
        "else falls silent meanwhile may put on the brake.",
    )
    flap_threshold: Count = Field(
        3, description="A cluster that ceases to be Available so often within --flap-window flaps. 0: none does."
    )
    flap_window: Duration = Field(timedelta(hours=1), description="See --flap-threshold.")
    flap_hold: NoDuration = Field(
        timedelta(minutes=5),
        description="Taints and alarms of a cluster that flaps follow its availability when that has held for so long. Unknown "
        "is never delayed.",
    )
    brake_share: float = Field(
        0.2,
        ge=0,
        le=1,
        description="When more than this share of the living fleet, and --brake-clusters, fall silent within --brake-window, "
        "taints, stale marks and removals are held until most are back, or until `hubctl release-brake`. 0: no brake.",
    )
    brake_clusters: Count = Field(10, description="See --brake-share: so many clusters at least.")
    brake_window: Duration = Field(timedelta(minutes=10), description="See --brake-share.")
    stale_after: NoDuration = Field(
        timedelta(), description="A cluster that is silent for so long is marked as stale. 0s: none is."
    )
    stale_removal_after: NoDuration = Field(
        timedelta(),
        description="A cluster that is silent for so long is removed, but never earlier after its mark than the difference to "
        "--stale-after. 0s: none is.",
    )
    transition_retention: Duration = Field(
        timedelta(days=90), description="Every change of a cluster's availability is kept this long, with its reason."
    )
    leader_elect_resource_lock: Literal["database", "kubernetes"] = Field(
        "database",
        description="What replicas compete for: a row of their database, or a Lease of the cluster that they run in (or that "
        "--management-cluster names). Never two replicas of one hub for different locks.",
    )
    leader_elect_resource_name: str | None = Field(
        None,
        description="Name of the lock: the same on all replicas of one hub. Without it: hub; of a Lease: the Deployment's.",
    )
    leader_elect_resource_namespace: str | None = Field(
        None, description="Where the Lease is. Without it: POD_NAMESPACE, as the downward API gives it."
    )
    leader_elect_lease_duration: Duration = Field(
        KUBERNETES.lease,
        description="A replica that died is followed by another after this long; at a clean stop within half a second. For a "
        "database that is away for a minute now and then: 137s, with a renew deadline of 107s and a retry period of 26s.",
    )
    leader_elect_renew_deadline: Duration = Field(
        KUBERNETES.renew_deadline,
        description="A leader that cannot reach the lock for this long leads no more. Shorter than the lease duration.",
    )
    leader_elect_retry_period: Duration = Field(
        KUBERNETES.retry, description="How often the leader renews the lock, and anybody tries again after a failure."
    )
    leader_elect_poll_period: Duration = Field(
        KUBERNETES.poll, description="How often the other replicas look whether the leader has released the lock."
    )
    shutdown_delay: NoDuration = Field(
        timedelta(), description="After SIGTERM everything is served this long while /readyz already fails."
    )
    shutdown_send_retry_after: bool = Field(
        True,  # noqa: FBT003 - a field's default
        description="true: once the delay is over new requests are told to try again (429, UNAVAILABLE) until the others are "
        "done; false: the listeners close at once.",
    )
    connection_age: NoDuration = Field(
        timedelta(hours=1),
        description="An agent whose session is about this old (up to a fifth less) is asked to open the next one, wherever the "
        "load balancer leads it. 0s: never.",
    )
    connection_age_grace: Duration = Field(
        timedelta(minutes=5), description="It has this long to do so; then the session ends."
    )
    shutdown_grace: Duration = Field(
        timedelta(seconds=10), description="Watches and agents' sessions are ended evenly within this time at a stop."
    )
    debug_socket: Path | None = Field(
        None,
        description="Unix socket that tells what the hub does right now (stacks, queues, sessions), to its user alone. "
        "Without it: only SIGUSR1 tells, in the log.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="The least that is logged.")
    log_format: LogFormat = Field(LogFormat.JSON, description="json: a line per event for machines; console: for people.")

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

    @field_validator("api_group_suffix")
    @classmethod
    def _is_a_domain(cls, suffix: str) -> str:
        if len(suffix) > MAX_SUFFIX or not _DOMAIN.fullmatch(suffix):
            raise ValueError(f'"{suffix}" can end no API group: write a domain of two labels or more, such as hub.example.com')
        return suffix

    @field_validator("aggregation_service")
    @classmethod
    def _names_a_service(cls, service: str | None, seen: ValidationInfo) -> str | None:
        if service is not None and not _SERVICE.fullmatch(service):
            raise ValueError(f'"{service}" names no Service: write NAMESPACE/NAME')
        if service is not None and seen.data.get("management_cluster") is None:
            raise ValueError("needs management_cluster too: the cluster whose APIServices are kept right")
        return service

    @field_validator("auto_approve")
    @classmethod
    def _are_globs(cls, globs: tuple[str, ...]) -> tuple[str, ...]:
        for glob in globs:
            if not _GLOB.fullmatch(glob):
                raise ValueError(f'"{glob}" can match no cluster name: use lower-case letters, digits, "-", "*" and "?"')
        return globs

    @field_validator("default_lease_duration")
    @classmethod
    def _is_whole_seconds(cls, duration: timedelta) -> timedelta:
        if duration % timedelta(seconds=1):
            raise ValueError("a lease lasts whole seconds, as leaseDurationSeconds has it")
        return duration

    @field_validator("stale_removal_after")
    @classmethod
    def _comes_after_a_mark(cls, duration: timedelta, seen: ValidationInfo) -> timedelta:
        mark = seen.data.get("stale_after")
        if duration and mark is not None and not timedelta() < mark < duration:
            raise ValueError("must be longer than stale_after, which must be set too: what is removed was marked before")
        return duration

    @field_validator("flush_window")
    @classmethod
    def _fits_the_lease(cls, duration: timedelta, seen: ValidationInfo) -> timedelta:
        lease = seen.data.get("default_lease_duration")
        if lease is not None and duration > lease:
            raise ValueError(f"must not be longer than default_lease_duration ({lease.total_seconds():g} s)")
        return duration

    @property
    def election_timings(self) -> Timings:
        """Raises InvalidError when they do not fit together."""
        return Timings(
            self.leader_elect_lease_duration,
            self.leader_elect_renew_deadline,
            self.leader_elect_retry_period,
            self.leader_elect_poll_period,
        )

    @model_validator(mode="after")
    def _elects_in_time(self) -> Self:
        try:
            _ = self.election_timings
        except InvalidError as error:
            raise ValueError(error.message) from None
        return self


def load(flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None) -> Settings:
    """The settings from all three places. Raises SettingsError with every problem.

    `environment` None: the process's own. A flag that is None or empty was not given.
    """
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    from_environment = _environment(environment)
    from_file, problems = _file(file)
    places = [
        ("file " + str(file), {name.replace("-", "_"): value for name, value in from_file.items()}),
        ("environment", from_environment),
        ("flags", given),
    ]
    merged: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for place, values in places:
        merged |= values
        origin |= dict.fromkeys(values, place)
    try:
        settings = _Merged(**merged)
    except ValidationError as error:
        problems += [_problem(entry, origin) for entry in error.errors(include_url=False, include_context=False)]
    if problems:
        raise SettingsError(problems)
    return settings


class _Merged(Settings):
    """The model alone: `load` has read the other places already, and knows which value came from where."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 - the base class passes it by name
        init_settings: PydanticBaseSettingsSource,
        *_: Any,
        **__: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def _environment(environment: Mapping[str, str] | None) -> dict[str, Any]:
    present = os.environ if environment is None else environment
    names = {ENVIRONMENT_PREFIX + name.upper(): name for name in Settings.model_fields}
    return {names[key.upper()]: value for key, value in present.items() if value and key.upper() in names}


def _file(file: Path | None) -> tuple[dict[str, Any], list[str]]:
    if file is None:
        return {}, []
    try:
        content = yaml.safe_load(file.read_text("utf-8"))
    except OSError as error:
        return {}, [f"file {file}: cannot be read: {error.strerror or error}"]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        words = " ".join(str(error).split())
        return {}, [f"file {file}: is not YAML: {words}"]
    if content is None:
        return {}, []
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        return {}, [f"file {file}: must be a mapping of settings to values"]
    return content, []


def _problem(entry: Mapping[str, Any], origin: Mapping[str, str]) -> str:
    name, *rest = [str(part) for part in entry["loc"]] or ["several together"]
    path = "".join([name, *(f"[{part}]" for part in rest)])
    if entry["type"] == "extra_forbidden":
        message = "there is no such setting"
    else:
        message = str(entry["msg"]).removeprefix("Value error, ")
    return f"{origin.get(name, 'settings')}: {path}: {message}"
