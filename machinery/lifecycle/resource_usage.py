"""Processor and memory use of this process."""

import os
import resource
import time

STATM = "/proc/self/statm"
ROOM = 256
KIBIBYTE = 1024


class ProcessUsage:
    """Measures processor time between calls."""

    def __init__(self) -> None:
        self._at, self._used = time.monotonic(), time.process_time()

    def processor(self) -> float:
        """Processor seconds per second since the last call; 0 right after it."""
        at, used = time.monotonic(), time.process_time()
        passed, spent = at - self._at, used - self._used
        self._at, self._used = at, used
        return spent / passed if passed > 0 else 0.0


def resident() -> int:
    """Resident bytes now; where the system does not report them, the maximum so far."""
    try:
        return int(_statm().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE


def _statm() -> bytes:
    """Read without a file object: an otherwise idle process calls this every two seconds."""
    file = os.open(STATM, os.O_RDONLY)
    try:
        return os.read(file, ROOM)
    finally:
        os.close(file)
