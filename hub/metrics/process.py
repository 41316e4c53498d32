"""The hub as a process."""

from machinery.lifecycle import usage
from machinery.metrics import Registry, gauge
from machinery.product import version

BUILD = gauge("hub_build_info", "Always 1; the version of this hub.", "version")
METRICS = (BUILD, *usage.METRICS)


def add_process(registry: Registry) -> None:
    registry.bind(BUILD, lambda: {version(): 1})
    usage.bind_usage(registry)
