"""Process metrics with the standard Prometheus names, read from /proc at each scrape."""

import gc
import os
import resource
import time
from pathlib import Path

from machinery.observability.metrics import Metric, MetricKind, Registry

_PAGE = resource.getpagesize()
_TICKS = os.sysconf("SC_CLK_TCK")
_STAT, _STATM, _UPTIME, _FILES = Path("/proc/self/stat"), Path("/proc/self/statm"), Path("/proc/stat"), Path("/proc/self/fd")
_START_TICKS = 19
"""Index of `starttime` after the program's name in /proc/self/stat."""

CPU = Metric(MetricKind.COUNTER, "process_cpu_seconds_total", "Total user and system CPU time spent in seconds.")
RESIDENT = Metric(MetricKind.GAUGE, "process_resident_memory_bytes", "Resident memory size in bytes.")
VIRTUAL = Metric(MetricKind.GAUGE, "process_virtual_memory_bytes", "Virtual memory size in bytes.")
OPEN_FILES = Metric(MetricKind.GAUGE, "process_open_fds", "Number of open file descriptors.")
MOST_FILES = Metric(MetricKind.GAUGE, "process_max_fds", "Maximum number of open file descriptors.")
STARTED = Metric(MetricKind.GAUGE, "process_start_time_seconds", "Start time of the process since unix epoch in seconds.")
COLLECTIONS = Metric(
    MetricKind.COUNTER, "python_gc_collections_total", "Number of times this generation was collected.", ("generation",)
)
METRICS = (CPU, RESIDENT, VIRTUAL, OPEN_FILES, MOST_FILES, STARTED, COLLECTIONS)


def raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit. Each connection needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def bind_usage(registry: Registry) -> None:
    """Bind the process metrics to the registry."""
    registry.bind(CPU, time.process_time)
    registry.bind(RESIDENT, lambda: _pages(1))
    registry.bind(VIRTUAL, lambda: _pages(0))
    registry.bind(OPEN_FILES, lambda: len(os.listdir(_FILES)) - 1)  # noqa: PTH208 - without the one that lists
    registry.bind(MOST_FILES, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    started = _started()
    registry.bind(STARTED, lambda: started)
    registry.bind(COLLECTIONS, lambda: {str(number): each["collections"] for number, each in enumerate(gc.get_stats())})


def _pages(place: int) -> int:
    return int(_STATM.read_text().split()[place]) * _PAGE


def _started() -> float:
    """Start time in seconds since 1970: the machine's boot time plus the process's start in ticks."""
    booted = next(int(line.split()[1]) for line in _UPTIME.read_text().splitlines() if line.startswith("btime "))
    return booted + int(_STAT.read_text().rpartition(")")[2].split()[_START_TICKS]) / _TICKS
