"""Real processes on free ports in a folder of their own; what they logged is shown when a test fails."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.processes import Bench

TAIL = 60
REPORT = pytest.StashKey[pytest.TestReport]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.when == "call":
        item.stash[REPORT] = report
    return report


@pytest.fixture
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    try:
        yield bench
    finally:
        await bench.close()
        report = request.node.stash.get(REPORT, None)
        if report is not None and report.failed:
            for program in bench.programs:
                tail = "\n".join(program.output.splitlines()[-TAIL:])
                sys.stderr.write(f"\n----- log of {program.name} -----\n{tail}\n")
    assert "PRIVATE KEY" not in bench.logs, "a private key is in a log"
