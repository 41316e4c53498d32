"""Prometheus metrics of the hub. Each metric is declared next to the function that binds it to its source."""

from hub.metrics import doors, fleet, replica
from machinery.lifecycle import usage
from machinery.observability.metrics import Metric

METRICS: tuple[Metric, ...] = (
    *(each for part in (fleet, doors, replica) for each in vars(part).values() if isinstance(each, Metric)),
    *usage.METRICS,
)
"""All metrics, in the order of the reference page."""
