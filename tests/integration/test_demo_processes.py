"""What the demo promises of the programs that it starts: none outlives it."""

import asyncio
import signal
import socket
import sys
from pathlib import Path

import pytest

from hollow.demo.place import choose_ports
from hollow.demo.processes import Child, Children, ask

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; print('deaf', flush=True); time.sleep(60)"],
                         preexec_fn=lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
print("ready", child.pid, flush=True)
time.sleep(60)
"""
POLITE = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("bye", flush=True), sys.exit(0)))
print("ready", flush=True)
time.sleep(60)
"""


async def lines_until(child: Child, word: str) -> list[str]:
    async with asyncio.timeout(20):
        while not any(word in line for line in child.last_words()):  # noqa: ASYNC110 - another process sets no Event
            await asyncio.sleep(0.02)
    return child.last_words()


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_program_that_will_not_end_is_killed_with_its_children(tmp_path: Path) -> None:
    async with Children(tmp_path, patience=0.2) as children:
        child = await children.start("stubborn", [sys.executable, "-c", STUBBORN])
        await lines_until(child, "deaf")
        [ready] = [line for line in await lines_until(child, "ready") if line.startswith("ready")]  # which is faster is chance
        grandchild = int(ready.split()[1])
        assert runs(grandchild)
    assert (child.exit_code, child.how_it_ended()) == (-signal.SIGKILL, "was ended by SIGKILL")
    async with asyncio.timeout(10):
        while runs(grandchild):  # noqa: ASYNC110 - another process sets no Event
            await asyncio.sleep(0.02)


async def test_programs_end_by_themselves_when_the_block_is_cancelled(tmp_path: Path) -> None:
    started: asyncio.Future[Child] = asyncio.get_running_loop().create_future()

    async def block() -> None:
        async with Children(tmp_path) as children:
            child = await children.start("polite", [sys.executable, "-c", POLITE])
            await lines_until(child, "ready")
            started.set_result(child)
            await child.ended()

    task, child = asyncio.create_task(block()), await started
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (child.exit_code, child.last_words()[-1]) == (0, "bye")


async def test_answer_holds_what_the_program_said_and_a_slow_program_is_ended() -> None:
    answer = await ask([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"])
    assert (answer.returncode, answer.stdout, answer.stderr) == (3, "out\n", "err\n")
    with pytest.raises(TimeoutError):
        await ask([sys.executable, "-c", "import time; time.sleep(60)"], within=0.3)


def test_a_taken_port_is_replaced_by_a_free_one_and_a_free_one_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        first, second = choose_ports(port, 0)
    assert len({port, first, second}) == 3
    [free] = choose_ports(0)
    assert choose_ports(free) == [free]
