"""Start and stop of the process, logs, metrics, traces, leader election."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from hub.settings.fields import Address, Duration, ListenAddress, NoDuration, SettingsGroup
from machinery.election.lock import KUBERNETES, Timings
from machinery.errors import InvalidError
from machinery.observability import telemetry
from machinery.observability.logs import LogFormat


class ProcessSettings(SettingsGroup):
    """Stops, the age of sessions, logs."""

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


class MetricsSettings(SettingsGroup):
    """Metrics."""

    metrics_listen: ListenAddress | None = Field(
        None,
        description="Where Prometheus may scrape /metrics in plain HTTP, without credentials: host:port. Without it: only on "
        "the HTTPS door, where the group system:monitoring may.",
    )
    metrics_per_cluster: bool = Field(
        False,  # noqa: FBT003 - a field's default
        description="true: also metrics that have a series for each cluster; their number grows with the fleet.",
    )

    @field_validator("metrics_listen")
    @classmethod
    def _metrics_port(cls, address: Address | None) -> Address | None:
        if address is not None and not address.port:
            raise ValueError("a listening address needs a port between 1 and 65535, as in 127.0.0.1:9090")
        return address


class Telemetry(SettingsGroup):
    """Off by default; needs the extra `tracing`."""

    trace_endpoint: Annotated[str | None, AfterValidator(lambda text: telemetry.endpoint(text) if text else None)] = Field(
        None,
        description="Collector that takes traces by OTLP over gRPC, such as http://collector:4317. Without it there are none. "
        "What OpenTelemetry reads from OTEL_EXPORTER_OTLP_* and OTEL_RESOURCE_ATTRIBUTES counts too.",
    )
    trace_share: float = Field(
        1.0,
        ge=0,
        le=1,
        description="The share of traces that is recorded. Hub and agents that have the same share record the same traces.",
    )


class Election(SettingsGroup):
    """The lock, and its timings."""

    leader_elect_resource_lock: Literal["database", "kubernetes"] = Field(
        "database",
        description="What replicas compete for: a row of their database, or a Lease of the cluster that they run in (or that "
        "--management-cluster names). Replicas that compete for different ones depose each other, but never do two write.",
    )
    leader_elect_resource_name: str | None = Field(
        None,
        description="Name of the Lease: the same on all replicas of one hub. Without it: that of the Deployment or StatefulSet "
        "that the pod belongs to. The database's row has no name to choose.",
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
