"""How replicas find out which of them leads."""

from typing import Literal, Self

from pydantic import Field, model_validator

from hub.settings.fields import Duration
from hub.settings.group import SettingsGroup
from machinery.election.config import KUBERNETES, Timings
from machinery.errors import InvalidError


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
