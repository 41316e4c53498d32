"""How clusters come in, where they are put, and how often they are heard."""

import re
from datetime import timedelta

from pydantic import Field, ValidationInfo, field_validator

from hub.fields import Duration, Words
from hub.settings.group import Group

_GLOB = re.compile(r"[a-z0-9*?\[\]!-]+")


class Clusters(Group):
    """What applies to every cluster."""

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
        return duration
