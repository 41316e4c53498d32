"""Under which name a process runs, and which processes are known to be gone."""

import asyncio
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from machinery.clock import ManualClock
from machinery.election import Candidate, Record
from machinery.errors import ForbiddenError
from spoke.candidacy import OwnLock, candidate_of, is_gone
from tests.fakes.memory_lock import MemoryLock, Way

SECONDS = timedelta(seconds=15)


def test_a_pod_bears_its_own_name_and_tells_its_processes_apart() -> None:
    one, two = (candidate_of({"POD_NAME": "spoke-7d9f-x2x4k"}) for _ in range(2))
    assert one.identity == two.identity == "spoke-7d9f-x2x4k"
    assert one.incarnation != two.incarnation


def test_two_processes_of_one_machine_have_two_names() -> None:
    one, two = (candidate_of({}) for _ in range(2))
    assert one.identity != two.identity


async def process() -> asyncio.subprocess.Process:
    told = "print(candidate_of({}).incarnation, flush=True)"
    program = f"import sys; from spoke.candidacy import candidate_of; {told}; sys.stdin.read()"
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdin=pipe, stdout=pipe)


async def test_what_a_killed_process_of_this_machine_held_is_free_at_once() -> None:
    lock = MemoryLock(ManualClock())
    running = await process()
    assert running.stdout is not None
    incarnation = (await running.stdout.readline()).decode().strip()
    held = await lock.take(None, Candidate("it", incarnation), SECONDS)
    assert await OwnLock(lock).read() == held, "it lives"
    running.send_signal(signal.SIGKILL)
    await running.wait()
    free = await OwnLock(lock).read()
    assert free is not None
    assert free.holder == ""
    assert (await OwnLock(lock).take(free, candidate_of({}), SECONDS)).term == 2


def proc_of(folder: Path, *, boot: str = "boot-1", space: str = "pid:[1]", stat: str | None = "7 (spoke (x)) S") -> Path:
    """A /proc with this process in it, and with process 7 as `stat` has it; None: there is none."""
    (folder / "sys/kernel/random").mkdir(parents=True)
    (folder / "sys/kernel/random/boot_id").write_text(f"{boot}\n")
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/pid").symlink_to(space)
    rest = " ".join("0" * 18)
    for number, said in ((os.getpid(), f"{os.getpid()} (python) R"), (7, stat)):
        if said is not None:
            (folder / str(number)).mkdir()
            (folder / str(number) / "stat").write_text(f"{said} {rest} 500 0")
    return folder


@pytest.mark.parametrize(
    ("incarnation", "stat", "gone"),
    [
        ("process boot-1/pid:[1] 7 500 x", "7 (spoke (x)) S", False),
        ("process boot-1/pid:[1] 7 499 x", "7 (spoke (x)) S", True),
        ("process boot-1/pid:[1] 7 500 x", None, True),
        ("process boot-1/pid:[1] 7 500 x", "7 (spoke) Z", True),
        ("process boot-0/pid:[1] 7 500 x", None, False),
        ("process boot-1/pid:[2] 7 500 x", None, False),
        ("a uuid", None, False),
        ("", None, False),
        ("process boot-1/pid:[1] seven 500 x", None, False),
    ],
    ids=["lives", "number used again", "gone", "zombie", "other start", "other container", "pod", "none", "nonsense"],
)
def test_a_process_is_gone_only_where_that_can_be_known(
    tmp_path: Path, incarnation: str, stat: str | None, *, gone: bool
) -> None:
    assert is_gone(incarnation, proc_of(tmp_path, stat=stat)) is gone


def test_without_proc_nobody_is_known_to_be_gone(tmp_path: Path) -> None:
    assert not is_gone(candidate_of({}).incarnation, tmp_path)
    assert not is_gone(candidate_of({}, tmp_path).incarnation)


class Refused(Way):
    """A lock for which the rights are missing."""

    async def read(self) -> Record | None:
        raise ForbiddenError('leases.coordination.k8s.io "spoke-agent" is forbidden')


async def test_missing_rights_are_told_with_what_to_do() -> None:
    with pytest.raises(ForbiddenError, match=r"is forbidden; .*upgrade the chart.*--leader-elect=false"):
        await OwnLock(Refused(MemoryLock(ManualClock()))).read()
