"""Start and stop of the process, logs, metrics, traces, leader election."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, model_validator

from hub.settings.fields import Duration, NoDuration, OptionalListenAddress, SettingsGroup, Share
from machinery.election.lock import KUBERNETES, Timings
from machinery.errors import InvalidError
from machinery.observability import telemetry
from machinery.observability.logs import LogFormat


class ProcessSettings(SettingsGroup):
    """Shutdown, age of sessions and logs."""

    shutdown_delay: NoDuration = timedelta()
    """Time after SIGTERM for which the hub serves all requests while /readyz already fails."""
    shutdown_send_retry_after: bool = True
    """true: after --shutdown-delay new requests are rejected with a retry hint (429, UNAVAILABLE) until open requests are
    finished; false: the listeners close immediately."""
    connection_age: NoDuration = timedelta(hours=1)
    """Age of a session, shortened by a random part of up to 20 %, at which the hub asks the agent to open a new session, so
    that the load balancer can choose a replica again. 0s: never."""
    connection_age_grace: Duration = timedelta(minutes=5)
    """Time in which an agent must open the new session. Then the hub ends the old session."""
    shutdown_grace: Duration = timedelta(seconds=10)
    """Time over which the hub spreads the end of watches and sessions when it stops."""
    debug_socket: Path | None = None
    """Path of a Unix socket that returns stacks, queues and sessions of the process, to the hub's user only. Without this
    socket, SIGUSR1 writes the same to the log."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum level of log messages."""
    log_format: LogFormat = LogFormat.AUTO
    """json: one JSON line per event; console: readable text, and the next steps after the start; auto: console if standard
    error is a terminal, else json."""


class MetricsSettings(SettingsGroup):
    """Metrics."""

    metrics_listen: OptionalListenAddress = None
    """Address that serves /metrics in plain HTTP without credentials: host:port. Without this address only the HTTPS API serves
    metrics, to callers that may get this path, such as the group system:monitoring."""
    metrics_per_cluster: bool = False
    """true: also export metrics with one time series per cluster. The number of series grows with the fleet."""


class Telemetry(SettingsGroup):
    """Tracing (off by default; requires the extra `tracing`)."""

    trace_endpoint: Annotated[str | None, AfterValidator(lambda text: telemetry.endpoint(text) if text else None)] = None
    """Collector that receives traces by OTLP over gRPC, such as http://collector:4317. Without a collector there are no traces.
    The variables OTEL_EXPORTER_OTLP_* and OTEL_RESOURCE_ATTRIBUTES of OpenTelemetry apply too."""
    trace_share: Share = 1.0
    """Share of traces that is recorded (0 to 1). Hub and agents with the same share record the same traces."""


class Election(SettingsGroup):
    """Leader election."""

    leader_elect_resource_lock: Literal["database", "kubernetes"] = "database"
    """Lock of the leader election: a row of the hub's database, or a Lease of the cluster in which the hub runs (or of
    --management-cluster). Use the same lock on all replicas. Otherwise leaders replace each other, although two leaders never
    write at the same time."""
    leader_elect_resource_name: str | None = None
    """Name of the Lease, the same on all replicas of a hub. Default: the name of the pod's Deployment or StatefulSet. The
    database lock has no name."""
    leader_elect_resource_namespace: str | None = None
    """Namespace of the Lease. Default: the environment variable POD_NAMESPACE, set by the downward API."""
    leader_elect_lease_duration: Duration = KUBERNETES.lease
    """Time after which another replica takes over from a failed leader. After a clean stop, --leader-elect-poll-period applies.
    To tolerate database outages of one minute: 137s, with a renew deadline of 107s and a retry period of 26s."""
    leader_elect_renew_deadline: Duration = KUBERNETES.renew_deadline
    """Time after which a leader that cannot renew the lock stops leading. Must be shorter than the lease duration."""
    leader_elect_retry_period: Duration = KUBERNETES.retry
    """Interval at which the leader renews the lock, and at which replicas retry after a failure."""
    leader_elect_poll_period: Duration = KUBERNETES.poll
    """Interval at which the other replicas check whether the leader has released the lock."""

    @property
    def election_timings(self) -> Timings:
        """Return the timings of the leader election. Raises InvalidError if they contradict each other."""
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
