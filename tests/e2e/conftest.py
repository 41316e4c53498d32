"""Real processes on free ports in a folder of their own; what they logged is shown when a test fails."""

import logging
import sys
from collections.abc import AsyncIterator, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.e2e.processes import Bench, Program

TAIL = 60
REPORT = pytest.StashKey[pytest.TestReport]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    if report.when == "call":
        item.stash[REPORT] = report
    return report


def print_when_failed(request: pytest.FixtureRequest, programs: Iterable[Program]) -> None:
    """What these programs logged last is shown when the test has failed."""
    report = request.node.stash.get(REPORT, None)
    if report is not None and report.failed:
        for program in programs:
            tail = "\n".join(program.output.splitlines()[-TAIL:])
            sys.stderr.write(f"\n----- log of {program.name} -----\n{tail}\n")


@pytest.fixture
async def bench(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path)
    try:
        yield bench
    finally:
        await bench.close()
        print_when_failed(request, bench.programs)
    assert "PRIVATE KEY" not in bench.logs, "a private key is in a log"


@pytest.fixture
def quiet() -> Iterator[None]:
    """Agents in this process log errors only: what a hundred of them log would take as much CPU time as what they do."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    yield
    structlog.reset_defaults()
