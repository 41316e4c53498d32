"""What an agent tells Prometheus: each metric, and how it is read from what the agent knows of itself.

No label names a cluster or a hub: whose agent it is says the target that is scraped.
"""

from machinery.lifecycle import usage
from machinery.metrics import Registry, gauge
from machinery.product import version
from spoke.progress import Progress

BUILD = gauge("spoke_build_info", "Always 1; the version of this agent.", "version")
READY = gauge("spoke_ready", "1: a beat was acknowledged within the lease duration; 0: none was.")
LAST_BEAT = gauge("spoke_last_acknowledged_heartbeat_timestamp_seconds", "When a beat was acknowledged last, since 1970.")
METRICS = (BUILD, READY, LAST_BEAT, *usage.METRICS)
"""Every one that an agent can tell, in the order of the reference page."""


def registry_of(progress: Progress) -> Registry:
    """All of them, over what the agent writes down of its progress."""
    registry = Registry()
    registry.bind(BUILD, lambda: {version(): 1})
    registry.bind(READY, lambda: int(progress.ready().ok))
    registry.bind(LAST_BEAT, lambda: progress.last_beat.timestamp() if progress.last_beat else None)
    usage.bind_usage(registry)
    return registry
