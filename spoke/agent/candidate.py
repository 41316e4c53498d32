"""Identity of an agent's process in leader election, its Lease, and detection of dead holders on the same machine.

In a pod, the candidate has the pod's name: a restarted container takes over its predecessor's Lease at once, because one pod
never runs twice. Outside of pods, several processes may run on one machine, so each gets a unique name; a Lease held by a dead
process of the same machine is free.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

from machinery.client.ownership import Namespace
from machinery.election import Candidate, Lock, LockRecord
from machinery.errors import ForbiddenError

POD_NAME = "POD_NAME"
"""Set by the downward API."""
PROC = Path("/proc")
_STATE, _START = 0, 19
"""Fields of /proc/PID/stat, counted from the first after the program's name."""
_GONE = ("Z", "X")
_MARK = "process"
_ADVICE = (
    "the agent's rights do not cover its Lease: upgrade the chart, which grants get, list, watch, create, update and patch on "
    "leases in its namespace, or run one process only, with --leader-elect=false"
)


def candidate_of(environment: Mapping[str, str], proc: Path = PROC) -> Candidate:
    """This process as a candidate."""
    one = str(uuid4())
    if pod := environment.get(POD_NAME):
        return Candidate(pod, one)
    marks = _marks(proc)
    born = _born(proc, os.getpid()) if marks else ""
    incarnation = " ".join((_MARK, marks, str(os.getpid()), born, one)) if born else one
    return Candidate(f"{socket.gethostname()}_{one[:8]}", incarnation)


class OwnLock(Lock):
    """A lock for the processes of one agent.

    A lock held by a dead process of this machine is free; missing permissions are reported with advice; `home`, if given, is
    created for the lock.
    """

    def __init__(self, lock: Lock, proc: Path = PROC, *, home: Namespace | None = None) -> None:
        self._lock = lock
        self._home = home
        self._proc = proc

    async def read(self) -> LockRecord | None:
        try:
            record = await self._lock.read()
        except ForbiddenError as error:
            raise ForbiddenError(f"{error.message}; {_ADVICE}") from error
        if record is not None and self._home is not None:
            self._home.seen()
        if record is not None and record.holder and is_gone(record.incarnation, self._proc):
            return replace(record, holder="")
        return record

    async def take(self, seen: LockRecord | None, candidate: Candidate, lease: timedelta) -> LockRecord:
        async def taken() -> LockRecord:
            try:
                return await self._lock.take(seen, candidate, lease)
            except ForbiddenError as error:
                raise ForbiddenError(f"{error.message}; {_ADVICE}") from error

        return await (taken() if self._home is None else self._home.holding(taken))

    async def renew(self, held: LockRecord) -> LockRecord:
        return await self._lock.renew(held)

    async def release(self, held: LockRecord) -> bool:
        return await self._lock.release(held)


def is_gone(incarnation: str, proc: Path = PROC) -> bool:
    """Whether the incarnation is a dead process of this machine since its last boot. False: it lives, or this is unknown."""
    mark, _, rest = incarnation.partition(" ")
    marks, _, process = rest.partition(" ")
    number, _, _ = process.partition(" ")
    if mark != _MARK or not number.isdigit() or marks != _marks(proc):
        return False
    return not process.startswith(f"{number} {_born(proc, int(number)) or '-'} ")


def _marks(proc: Path) -> str:
    """This boot of this machine and our PID namespace; empty when unknown."""
    with suppress(OSError):
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(proc / 'self/ns/pid').readlink()}"
    return ""


def _born(proc: Path, number: int) -> str:
    """Start time of the process with this number in kernel ticks; empty when none runs."""
    with suppress(OSError):
        fields = (proc / str(number) / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return "" if fields[_STATE] in _GONE else fields[_START]
    return ""
