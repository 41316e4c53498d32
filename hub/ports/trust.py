"""Access to the CAs that each agent trusts and the certificate that it holds."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from hub.api.certificateauthorities.authority import AgentTrust
from machinery.identity import AgentId, ClusterName


class Trusts(Protocol):
    """One row per cluster and agent. Writes are not news: they add no change-log row."""

    def get(self, cluster: ClusterName, agent: AgentId) -> AgentTrust | None: ...

    def all(self) -> Sequence[AgentTrust]:
        """All rows, ordered by the bytes of cluster and agent."""

    def ends(self) -> Mapping[ClusterName, datetime]:
        """End of the certificate that each cluster's agent holds; the latest of several agents."""

    def ending(self, moments: Sequence[datetime]) -> Sequence[int]:
        """For each of these instants, the number of `ends` at or before it; then the number of all `ends`."""

    def first_end(self, after: datetime) -> datetime | None:
        """The earliest of `ends` after that instant."""

    def put(self, trust: AgentTrust) -> None:
        """Add or replace the row of this agent."""

    def forget(self, cluster: ClusterName) -> None: ...
