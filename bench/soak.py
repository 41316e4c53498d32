"""The tests that repeat a trial, with many trials each; what came of it is noted in bench/soak.md.

python -m bench.soak [arguments for pytest]

With arguments (one test, some tests) the outcome is shown, and the notes of the last whole run stay as they are.
"""

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import pytest

from machinery.runtime.clock import SystemClock

ROOT = Path(__file__).parents[1]
NOTES = Path(__file__).with_name("soak.md")
APART = "## Apart from it"
"""Where the notes go on that people wrote; a run leaves them as they are."""
TIMEOUT = 1800
"""Seconds that one test may take: many trials may be in it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one test function, all its cases together."""

    trials: int = 0
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        if self.failed:
            return f"{self.failed} of {self.passed + self.failed} cases failed"
        return "passed" if self.passed else "skipped"


class Tally:
    """A pytest plugin that adds up what the cases of each test function came to."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._trials: dict[str, int] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            marker = item.get_closest_marker("soak")
            self._trials[item.nodeid] = marker.kwargs["trials"] if marker else 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("[")[0]
        was = self.outcomes.get(name, Outcome())
        now = replace(was, seconds=was.seconds + report.duration)
        called = report.when == "call"
        if report.failed:
            now = replace(now, failed=was.failed + 1)
        elif report.skipped:
            now = replace(now, skipped=was.skipped + 1)
        elif called:
            now = replace(now, passed=was.passed + 1)
        if called and not report.skipped:
            now = replace(now, trials=was.trials + self._trials.get(report.nodeid, 0))
        self.outcomes[name] = now


def written(outcomes: Mapping[str, Outcome], began: datetime, seconds: float) -> str:
    """The notes of one run: no names of machines, no paths outside the project."""
    return "\n".join(_lines(outcomes, began, seconds)) + "\n"


def _lines(outcomes: Mapping[str, Outcome], began: datetime, seconds: float) -> Iterator[str]:
    failed = sum(outcome.failed for outcome in outcomes.values())
    trials = sum(outcome.trials for outcome in outcomes.values())
    yield "# The last soak"
    yield ""
    yield f"Written by `make soak` on {began:%Y-%m-%d}: {trials} trials of {len(outcomes)} tests in {seconds / 60:.1f} minutes,"
    yield ("all passed." if not failed else f"{failed} cases failed.")
    yield ""
    yield "| test | trials | seconds | outcome |"
    yield "|---|---|---|---|"
    for name, outcome in sorted(outcomes.items()):
        file, _, function = name.partition("::")
        yield f"| `{file}` {function} | {outcome.trials} | {outcome.seconds:.0f} | {outcome.verdict} |"


def renewed(notes: str, run: str) -> str:
    """The notes with this run in place of the last one."""
    _, apart, rest = notes.partition(APART)
    return f"{run}\n{apart}{rest}" if apart else run


def run(arguments: Sequence[str]) -> int:
    """Pytest's exit code. A run that came to nothing, or was of some tests only, leaves the notes as they are."""
    os.environ["MUSTER_TRIALS"] = "soak"
    os.chdir(ROOT)
    tally = Tally()
    began, start = SystemClock().now(), time.monotonic()
    code = pytest.main(["-m", "soak", "-o", f"timeout={TIMEOUT}", *arguments], plugins=[tally])
    told = written(tally.outcomes, began, time.monotonic() - start)
    if arguments:
        sys.stdout.write(f"\n{told}")
    elif tally.outcomes:
        NOTES.write_text(renewed(NOTES.read_text(), told))
    return int(code)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
