"""Settings of a load: the profile, the agents of this machine, and the limits for the results."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

LAG_LIMIT = 0.1
"""Default limit, in seconds, of the p99 of the generator's own lag."""


class Profile(StrEnum):
    """Behaviour of the agents when all of them are connected."""

    JOIN = "join"
    """The load ends when the first beat of each agent is acknowledged."""
    STEADY = "steady"
    """The agents send beats and periodic status reports."""
    CHURN = "churn"
    """Like STEADY, but the status of each cluster changes."""
    STORM = "storm"
    """Like STEADY, but all sessions break at the same time, once per period (`LoadSettings.every`)."""
    FLAP = "flap"
    """Like STEADY, but a share of the agents is silent. In each period (`LoadSettings.every`), other agents are silent."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the results. None: not checked. Durations are in seconds."""

    lost_beats: int | None = None
    p99: float | None = None
    """Limit of the p99 of the latency `LoadSettings.judged`."""
    errors: int | None = None
    lag: float = LAG_LIMIT
    """If the p99 of the generator's lag exceeds both this limit and a tenth of the judged p99, the run does not count."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """The settings of a load. Durations are in seconds. The worker processes get the settings as JSON."""

    profile: Profile
    bootstrap_kubeconfig: str
    state_dir: str
    agents: int
    processes: int = 1
    name_prefix: str = "load"
    first_index: int = 0
    duration: float = 60.0
    """Duration of the measurement, which begins when all agents are connected. JOIN does not use it."""
    ramp: float = 10.0
    start_within: float = 600.0
    """The load ends if not all agents are connected within this time."""
    every: float = 30.0
    share: float = 0.1
    """Share of the agents that is silent in each period (`every` seconds) of FLAP."""
    changes_per_minute: float = 1.0
    limits: Limits = field(default_factory=Limits)

    @property
    def judged(self) -> str:
        """Name of the latency that `Limits.p99` limits."""
        return {Profile.JOIN: "join", Profile.STORM: "reconnect"}.get(self.profile, "beat")

    def names_of(self, process: int) -> list[str]:
        """Return the names of the clusters of one process."""
        last = self.first_index + self.agents
        return [f"{self.name_prefix}-{index}" for index in range(self.first_index + process, last, self.processes)]

    def document(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "LoadSettings":
        profile, limits = Profile(document["profile"]), Limits(**document["limits"])
        return cls(**{**document, "profile": profile, "limits": limits})
