"""Limits of requests, the audit trail, and how much history is kept."""

from datetime import timedelta
from pathlib import Path

from pydantic import Field

from hub.settings.fields import Count, Duration, NoDuration, SettingsGroup, Size


class CapacitySettings(SettingsGroup):
    """Limits and the audit trail."""

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
    max_watches: Count = Field(
        100_000,
        description="Watches that are open at this replica, but for those of system:masters. More get 429. 0: any number.",
    )
    max_watches_per_identity: Count = Field(500, description="Watches of one identity, likewise.")
    max_connections_per_address: Count = Field(
        10_000,
        description="Connections to the HTTPS door that one address has open (of IPv6, one /64). More are closed. A fleet "
        "behind one NAT, or behind a balancer without --https-proxies, has one address. 0: any number.",
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
    audit_size: Size = Field(
        2**30,
        description="Audit records in the database take this much at most: above it the oldest of the caller with most go "
        "before their time; an Event warns at four fifths. Refusals of callers without a known credential are bounded apart. "
        "A size such as 1Gi.",
    )


class RetentionSettings(SettingsGroup):
    """History, and what is removed because it waited too long."""

    history_retention: NoDuration = Field(
        timedelta(days=30),
        description="The past of objects can be read this far back (`hubctl get clusters --at`, `hubctl history`). 0s: as far "
        "as --watch-window. Secrets, Events and Leases have no history.",
    )
    history_size: Size = Field(
        2**30,
        description="The change log, which the past is read from, takes this much at most: above it the oldest goes before its "
        "time, but nothing younger than --watch-window. A size such as 1Gi.",
    )
    disk_reserve: Size = Field(
        256 * 2**20,
        description="When less than this is free for an embedded database, the oldest history goes before its time; at twice "
        "as much operators are warned. A size such as 256Mi; 0: neither.",
    )
    pending_requests: Duration = Field(
        timedelta(hours=24),
        description="Certificate requests that nobody decides, and approved ones that nobody signs, are kept this long.",
    )
