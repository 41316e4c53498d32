"""Limits of requests, the audit trail, and the retention of history."""

from datetime import timedelta
from pathlib import Path

from hub.settings.fields import Count, Duration, NoDuration, SettingsGroup, Size


class CapacitySettings(SettingsGroup):
    """Limits and audit records."""

    max_requests_inflight: Count = 400
    """Maximum number of concurrent read requests at the HTTPS API, without requests of agents. Further requests are queued,
    then rejected with 429. 0: no limit."""
    max_mutating_requests_inflight: Count = 200
    """Maximum number of concurrent write requests at the HTTPS API, without requests of agents. Further requests are queued,
    then rejected with 429. 0: no limit."""
    max_lifelines_inflight: Count = 100
    """Maximum number of concurrent requests that agents need to stay connected (leases and certificate renewals), at both
    servers. These requests have their own priority level. 0: no limit."""
    max_registrations_inflight: Count = 100
    """Maximum number of concurrent requests with bootstrap credentials, at both servers. 0: no limit."""
    max_session_starts_inflight: Count = 100
    """Maximum number of agents' sessions that start concurrently. 0: no limit."""
    max_status_reports_inflight: Count = 100
    """Maximum number of concurrent status reports of agents, at both servers. 0: no limit."""
    max_sessions_per_cluster: Count = 10
    """Maximum number of open sessions of the agents of one cluster. During a handover the old and the new session both count.
    0: no limit."""
    max_watches: Count = 100_000
    """Maximum number of open watches at this replica; watches of system:masters do not count. Further watches are rejected with
    429. 0: no limit."""
    max_watches_per_identity: Count = 500
    """Maximum number of open watches of one identity at this replica. Further watches are rejected with 429. 0: no limit."""
    max_connections_per_address: Count = 10_000
    """Maximum number of open connections to the HTTPS API, and to --ocm-grpc-listen, from one IPv4 address or one IPv6 /64.
    Further connections are closed. Clusters behind one NAT, or behind a load balancer that is not listed in --https-proxies,
    share one address. 0: no limit."""
    identity_rate: Count = 200
    """Maximum number of requests per second of one identity at a replica, at both servers together. system:masters may exceed
    this. 0: no limit."""
    identity_burst: Count = 1000
    """Number of requests of one identity that are permitted as a burst, above --identity-rate."""
    audit_policy_file: Path | None = None
    """Audit policy as for kube-apiserver (audit.k8s.io/v1 Policy, YAML). Without it the hub records writes and reads of
    Secrets, but no beats, status reports, Events and access reviews."""
    audit_log_path: str | None = None
    """File to which audit records are written as JSON lines, in addition to the database; - for standard output."""
    audit_retention: Duration = timedelta(days=90)
    """Retention of audit records in the database."""
    audit_size: Size = 2**30
    """Maximum size of the audit records in the database, such as 1Gi. Above this size the hub removes the oldest records of the
    caller with the most records before --audit-retention ends. An Event warns at 80 %. Rejected requests without a known
    credential have a separate limit."""


class RetentionSettings(SettingsGroup):
    """History and retention."""

    history_retention: NoDuration = timedelta(days=30)
    """Time for which past states of objects can be read (`hubctl get clusters --at`, `hubctl history`). 0s: as long as
    --watch-window. Secrets, Events and Leases have no history."""
    history_size: Size = 2**30
    """Maximum size of the change log, which contains the history, such as 1Gi. Above this size the hub removes the oldest
    history early, but nothing younger than --watch-window."""
    disk_reserve: Size = 256 * 2**20
    """Free disk space below which a hub on SQLite removes its oldest history early, such as 256Mi. Operators are warned when
    less than twice this space is free. 0: off."""
    pending_requests: Duration = timedelta(hours=24)
    """Retention of certificate requests that are not decided, and of approved requests that are not signed."""
