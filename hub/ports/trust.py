"""What each agent trusts, and which certificate it holds."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from hub.api.certificateauthorities.trust import AgentTrust
from machinery.identity import AgentId, ClusterName


class Trusts(Protocol):
    """One row per cluster and agent. None of it is news: no change-log row."""

    def get(self, cluster: ClusterName, agent: AgentId) -> AgentTrust | None: ...

    def all(self) -> Sequence[AgentTrust]:
        """In the order of clusters and agents, by their bytes."""

    def ends(self) -> Mapping[ClusterName, datetime]:
        """When the certificates end that agents hold, of several of one cluster the last."""

    def ending(self, moments: Sequence[datetime]) -> Sequence[int]:
        """How many of `ends` are at or before each of these moments; and last how many there are."""

    def first_end(self, after: datetime) -> datetime | None:
        """The first of `ends` after that moment."""

    def put(self, trust: AgentTrust) -> None:
        """Replaces what was there of this agent."""

    def forget(self, cluster: ClusterName) -> None: ...
