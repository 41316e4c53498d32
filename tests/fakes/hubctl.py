"""hubctl in this process: what it says and how it ends, without the time that a process takes to start."""

import asyncio
import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from hub.cli.__main__ import run


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def hubctl(*arguments: str, given: str = "") -> Said:
    """Runs a command; `given` is its standard input."""
    out, err, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(given)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = run(arguments)
    finally:
        sys.stdin = before
    return Said(code, out.getvalue(), err.getvalue())


async def hubctl_at(kubeconfig: Path, *arguments: str, given: str = "") -> Said:
    """The same beside a running loop, at the hub of a kubeconfig. One at a time: it has the process's standard output."""
    return await asyncio.to_thread(hubctl, "--kubeconfig", str(kubeconfig), *arguments, given=given)
