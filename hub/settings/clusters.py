"""Registration of clusters, heartbeats, and actions on silent clusters."""

import re
from datetime import timedelta
from typing import Annotated

from pydantic import Field, ValidationInfo, field_validator

from hub.settings.fields import Count, Duration, NoDuration, SettingsGroup, Share, Words
from machinery.meta.selectors import valid_label_key
from machinery.product import RESERVED_DOMAINS, is_reserved

LONGEST_FLUSH_WINDOW = timedelta(seconds=4)
"""Upper limit of `flush_window`. It is one second shorter than the time for which agents wait for an acknowledgement (5 s)."""
_GLOB = re.compile(r"[a-z0-9*?\[\]!-]+")


class Clusters(SettingsGroup):
    """Registration and heartbeats."""

    auto_approve: Words = ()
    """Globs of cluster names that are accepted, and whose first certificate is approved, automatically. Empty: every cluster
    waits for `hubctl accept` and `hubctl certificate approve`."""
    join_labels: Words = ()
    """Labels that an agent may set when its cluster joins: keys, or prefix/* for all keys of a prefix. Agents can never set
    labels of open-cluster-management.io, kubernetes.io and k8s.io. Empty: none."""
    default_cluster_set: bool = True
    """Create the cluster sets default and global, and add clusters without a set to default (Open Cluster Management's feature
    gate DefaultClusterSet)."""
    cluster_profiles: bool = False
    """Publish accepted clusters as ClusterProfiles (multicluster.x-k8s.io) in the namespaces to which their sets are bound
    (Open Cluster Management's feature gate ClusterProfile)."""
    default_lease_duration: Duration = timedelta(seconds=60)
    """Lease duration of a new cluster. The hub sets a cluster to Unknown after five lease durations without a beat."""
    beat_interval: Duration = timedelta(seconds=10)
    """Interval at which agents send beats. If a cluster's lease duration is shorter, its agent uses the lease duration."""
    beats_per_second: Annotated[float, Field(ge=0)] = 35.0
    """Maximum number of beats per second that one replica receives from all its agents. Above this number the hub increases the
    agents' beat interval, to at most half of the lease duration. 0: no limit."""
    flush_window: Duration = timedelta(seconds=1)
    """Time for which the hub collects beats before it stores and acknowledges them together. At most 4s: agents leave a hub
    that has not acknowledged a beat for 5s."""

    standby_interval: Duration = timedelta(minutes=10)
    """Interval at which an agent confirms its standby registration at a hub that is not its owner."""

    @field_validator("join_labels")
    @classmethod
    def _may_be_listed(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            key = f"{pattern.removesuffix('/*')}/x" if pattern.endswith("/*") else pattern
            if not valid_label_key(key):
                raise ValueError(f'"{pattern}" is neither the key of a label nor a prefix/*')
            if is_reserved(pattern):
                raise ValueError(f'"{pattern}" is reserved: agents cannot set labels of {", ".join(RESERVED_DOMAINS)}')
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
            raise ValueError("must be whole seconds, as leaseDurationSeconds")
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
    """Clock skew, taints, damping, the brake and stale clusters."""

    clock_skew_limit: NoDuration = timedelta()
    """Difference between the clocks of hub and cluster above which the hub reports the cluster as out of sync, without any
    other effect. 0s: five lease durations of the cluster."""
    taint_delay: NoDuration = timedelta(seconds=30)
    """Time from the change of a cluster's availability to Unknown until the hub taints the cluster and logs its alarm. Other
    clusters that become silent in this time can still activate the brake."""
    flap_threshold: Count = 3
    """Number of times that a cluster must lose its availability within --flap-window to count as flapping. 0: no damping."""
    flap_window: Duration = timedelta(hours=1)
    """Time window for --flap-threshold."""
    flap_hold: NoDuration = timedelta(minutes=5)
    """Time for which a flapping cluster's availability must stay unchanged before taints and alarms follow it. The change to
    Unknown is never delayed."""
    brake_share: Share = 0.2
    """Share (0 to 1) of the clusters that were not silent before. If more of these clusters, and at least --brake-clusters,
    become silent within --brake-window, the brake postpones taints, alarms, stale marks and removals until most of them report
    again or `hubctl release-brake` runs. 0: off."""
    brake_clusters: Count = 10
    """Minimum number of silent clusters that activates the brake, in addition to --brake-share."""
    brake_window: Duration = timedelta(minutes=10)
    """Time window for --brake-share and --brake-clusters."""
    stale_after: NoDuration = timedelta()
    """Time of silence after which a cluster is marked as stale. 0s: never."""
    stale_removal_after: NoDuration = timedelta()
    """Time of silence after which a stale cluster is deleted. The time from the mark to the deletion is at least
    --stale-removal-after minus --stale-after. As with `hubctl delete`, finalizers of its add-ons delay the removal. 0s:
    never."""
    transition_retention: Duration = timedelta(days=90)
    """Retention of the changes of a cluster's condition Available, with their reasons."""

    @field_validator("stale_removal_after")
    @classmethod
    def _comes_after_a_mark(cls, duration: timedelta, seen: ValidationInfo) -> timedelta:
        mark = seen.data.get("stale_after")
        if duration and mark is not None and not timedelta() < mark < duration:
            raise ValueError("must be longer than stale_after, which must be set too: only marked clusters are removed")
        return duration
