"""Processor time, memory and open files of this process, and the metrics about them with Prometheus' standard names."""

import asyncio
import ctypes
import gc
import os
import resource
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from machinery.observability.metrics import Metric, MetricKind, Registry

_PAGE = resource.getpagesize()
_KIBIBYTE = 1024
_TICKS = os.sysconf("SC_CLK_TCK")
_STAT, _STATM, _UPTIME, _FILES = Path("/proc/self/stat"), "/proc/self/statm", Path("/proc/stat"), Path("/proc/self/fd")
ARENAS = 2
_ARENA_MAX, _M_ARENA_MAX = "MALLOC_ARENA_MAX", -8
TRIM_EVERY = timedelta(minutes=10)
COLLECT_AFTER = (20_000, 5, 200)
_START_TICKS = 19
"""Index of the field `starttime` in /proc/self/stat. Index 0 is the first field after the program's name."""

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
    """Raise the soft limit of open files to the hard limit, because each connection needs a file descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def limit_arenas() -> None:
    """Let all threads share a few arenas of glibc's allocator, unless MALLOC_ARENA_MAX is set.

    By default each thread of gRPC can get an arena. Memory that is free in one arena is not used by threads of another.
    """
    if _ARENA_MAX not in os.environ:
        with suppress(OSError, AttributeError):  # another C library has no such option
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, ARENAS)


def limit_collections() -> None:
    """Never examine the objects that exist now for garbage, and others rarely: reference counts free most objects of sessions.

    With Python's default, a collection after 700 new objects, collections were a fifth of a heartbeat's cost, and stopped a
    process with 1,000 sessions for up to 0.8 s each time it examined all its objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()


async def trim_memory() -> None:
    """Every ten minutes, return to the system the memory that glibc holds without using it. Runs until cancelled.

    When many connections are replaced, as by a renewal of certificates, the freed memory lies between used memory, and glibc
    keeps it: after 5,000 renewals glibc held 738 MiB, of which 110 MiB were in use. A thread does this, as it can take 1 s.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _margin: 0)  # other C libraries do not have it
    while True:
        await asyncio.sleep(TRIM_EVERY.total_seconds())
        await asyncio.to_thread(trim, 0)


def bind_usage(registry: Registry) -> None:
    registry.bind(CPU, time.process_time)
    registry.bind(RESIDENT, resident)
    registry.bind(VIRTUAL, lambda: _memory(0))
    registry.bind(OPEN_FILES, lambda: len(os.listdir(_FILES)) - 1)  # noqa: PTH208 - minus the descriptor of the listing
    registry.bind(MOST_FILES, lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    started = _started()
    registry.bind(STARTED, lambda: started)
    registry.bind(COLLECTIONS, lambda: {str(number): each["collections"] for number, each in enumerate(gc.get_stats())})


def _started() -> float:
    """Return the start time of the process in seconds since 1970: the boot time plus the start in ticks since boot."""
    booted = next(int(line.split()[1]) for line in _UPTIME.read_text().splitlines() if line.startswith("btime "))
    return booted + int(_STAT.read_text().rpartition(")")[2].split()[_START_TICKS]) / _TICKS


class ProcessUsage:
    """Measures the processor time of this process between calls of `processor`."""

    def __init__(self) -> None:
        self._at, self._used = time.monotonic(), time.process_time()

    def processor(self) -> float:
        """Return the processor time since the last call, in seconds per second; 0 if no time has passed."""
        at, used = time.monotonic(), time.process_time()
        passed, spent = at - self._at, used - self._used
        self._at, self._used = at, used
        return spent / passed if passed > 0 else 0.0


def resident() -> int:
    """Return the resident memory in bytes; if the system does not report it, the maximum so far."""
    try:
        return _memory(1)
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBIBYTE


def _memory(place: int) -> int:
    """Return a column of statm in bytes. It uses no file object, because an idle process calls this every two seconds."""
    file = os.open(_STATM, os.O_RDONLY)
    try:
        return int(os.read(file, 256).split()[place]) * _PAGE
    finally:
        os.close(file)
