"""What this process uses of its machine: processor since it was looked at last, and memory."""

import os
import resource
import time

STATM = "/proc/self/statm"
ROOM = 256
KIBIBYTE = 1024


class ProcessUsage:
    """Two clocks, and what they said at the look before."""

    def __init__(self) -> None:
        self._at, self._used = time.monotonic(), time.process_time()

    def processor(self) -> float:
        """Processor seconds per second since the look before; 0 right after it."""
        at, used = time.monotonic(), time.process_time()
        passed, spent = at - self._at, used - self._used
        self._at, self._used = at, used
        return spent / passed if passed > 0 else 0.0


def resident() -> int:
    """Bytes in memory now; where the system does not tell, the most that there ever were."""
    try:
        return int(_statm().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIBIBYTE


def _statm() -> bytes:
    """Without a file object: it is read every two seconds by a process that has little else to do."""
    file = os.open(STATM, os.O_RDONLY)
    try:
        return os.read(file, ROOM)
    finally:
        os.close(file)
