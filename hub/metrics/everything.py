"""All metrics of a hub, and who counts what they tell."""

from dataclasses import dataclass

from hub.apiserver.door import Door
from hub.leading import Leading
from hub.metrics import agents, process
from hub.rpc.parts import Parts
from machinery.apiserver.draining import Draining
from machinery.metrics import Metric, Registry

METRICS: tuple[Metric, ...] = (*process.METRICS, *agents.METRICS)
"""Every one that a hub can tell, in the order of the reference page."""


@dataclass(frozen=True, slots=True)
class Counted:
    """The parts that count."""

    agents: Parts
    operators: Door
    draining: Draining
    leading: Leading


def add_metrics(registry: Registry, counted: Counted) -> None:
    """Binds everything but the process, which is told of from the start."""
    agents.add_agents(registry, counted.agents)
