"""Registration of clusters, heartbeats, and what follows from silence."""

import re
from datetime import timedelta

from pydantic import Field, ValidationInfo, field_validator

from hub.settings.fields import Count, Duration, NoDuration, SettingsGroup, Words
from machinery.meta.selectors import valid_label_key
from machinery.product import RESERVED_DOMAINS, is_reserved

LONGEST_FLUSH_WINDOW = timedelta(seconds=4)
"""One second less than agents wait for an acknowledgement."""
_GLOB = re.compile(r"[a-z0-9*?\[\]!-]+")


class Clusters(SettingsGroup):
    """What applies to every cluster."""

    auto_approve: Words = Field(
        (),
        description="Cluster names, as globs, that are accepted and whose first certificate is approved without a human. "
        "Empty: every cluster waits for `hubctl accept` and `hubctl certificate approve`.",
    )
    join_labels: Words = Field(
        (),
        description="Labels that an agent may set when its cluster joins: keys, or prefix/* for all of a prefix. Those of "
        "open-cluster-management.io, kubernetes.io and k8s.io are never an agent's. Empty: none.",
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
    beats_per_second: float = Field(
        35.0,
        ge=0,
        description="Where all agents of a replica would beat more often than this all together, each is told to beat "
        "more seldom, down to twice a lease. 0: they beat at their interval, however many they are.",
    )
    flush_window: Duration = Field(
        timedelta(seconds=1),
        description="Heartbeats are collected this long, then stored in one statement and acknowledged. At most 4s: agents "
        "leave a hub that has not acknowledged a heartbeat for 5s.",
    )

    standby_interval: Duration = Field(
        timedelta(minutes=10),
        description="An agent that reports to another hub and holds this one in reserve says so this often.",
    )

    @field_validator("join_labels")
    @classmethod
    def _may_be_listed(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            key = f"{pattern.removesuffix('/*')}/x" if pattern.endswith("/*") else pattern
            if not valid_label_key(key):
                raise ValueError(f'"{pattern}" is neither the key of a label nor a prefix/*')
            if is_reserved(pattern):
                raise ValueError(f'"{pattern}" is reserved: no agent chooses labels of {", ".join(RESERVED_DOMAINS)}')
        return patterns

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

    @field_validator("flush_window")
    @classmethod
    def _fits_the_lease(cls, duration: timedelta, seen: ValidationInfo) -> timedelta:
        lease = seen.data.get("default_lease_duration")
        if lease is not None and duration > lease:
            raise ValueError(f"must not be longer than default_lease_duration ({lease.total_seconds():g} s)")
        if duration > LONGEST_FLUSH_WINDOW:
            raise ValueError("must not be longer than 4 s: agents leave a hub that has not acknowledged a heartbeat for 5 s")
        return duration


class AvailabilitySettings(SettingsGroup):
    """Clock skew, taints, flaps, the brake, stale clusters."""

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
        "--stale-after. What holds its add-ons holds it too, as when it is deleted by hand. 0s: none is.",
    )
    transition_retention: Duration = Field(
        timedelta(days=90), description="Every change of a cluster's availability is kept this long, with its reason."
    )

    @field_validator("stale_removal_after")
    @classmethod
    def _comes_after_a_mark(cls, duration: timedelta, seen: ValidationInfo) -> timedelta:
        mark = seen.data.get("stale_after")
        if duration and mark is not None and not timedelta() < mark < duration:
            raise ValueError("must be longer than stale_after, which must be set too: what is removed was marked before")
        return duration
