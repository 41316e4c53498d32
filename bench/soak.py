"""Runs tests that repeat a trial, with many trials each, and writes the result to bench/soak.md.

python -m bench.soak [arguments for pytest]

With arguments, such as some tests, it prints the result and does not change bench/soak.md.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from machinery.runtime.clock import SystemClock

ROOT = Path(__file__).parents[1]
NOTES = Path(__file__).with_name("soak.md")
MANUAL = "## Other runs"
"""Heading of the part that is written by hand. A run does not change this part."""
TIMEOUT = 1800
"""Time limit in seconds of one test with all its trials."""


@dataclass(slots=True)
class Outcome:
    """The result of one test function for all its cases together."""

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
    """A pytest plugin that adds up the cases of each test function."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}
        self._trials: dict[str, int] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            marker = item.get_closest_marker("soak")
            self._trials[item.nodeid] = marker.kwargs["trials"] if marker else 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = report.nodeid.partition("[")[0]
        outcome = self.outcomes.setdefault(name, Outcome())
        outcome.seconds += report.duration
        if report.failed:
            outcome.failed += 1
        elif report.skipped:
            outcome.skipped += 1
        elif report.when == "call":
            outcome.passed += 1
        if report.when == "call" and not report.skipped:
            outcome.trials += self._trials.get(report.nodeid, 0)


def written(outcomes: Mapping[str, Outcome], began: datetime, seconds: float) -> str:
    failed, trials = (sum(getattr(outcome, name) for outcome in outcomes.values()) for name in ("failed", "trials"))
    names = [(name.partition("::"), outcome) for name, outcome in sorted(outcomes.items())]
    lines = [
        "# Repeated trials: the last run",
        "",
        f"Written by `make soak` on {began:%Y-%m-%d}: {trials} trials of {len(outcomes)} tests in {seconds / 60:.1f} minutes.",
        f"{failed} cases failed." if failed else "All passed.",
        "",
        "| test | trials | seconds | outcome |",
        "|---|---|---|---|",
        *(f"| `{file}` {name} | {each.trials} | {each.seconds:.0f} | {each.verdict} |" for (file, _, name), each in names),
    ]
    return "\n".join(lines) + "\n"


def renewed(notes: str, run: str) -> str:
    """Return the notes with this run instead of the last one, and with the part that is written by hand."""
    _, apart, rest = notes.partition(MANUAL)
    return f"{run}\n{apart}{rest}" if apart else run


def run(arguments: Sequence[str]) -> int:
    """Run pytest. Return its exit code. Update the notes only if all soak tests ran, that is, without `arguments`."""
    os.environ["MUSTER_TRIALS"] = "soak"
    os.chdir(ROOT)
    tally = Tally()
    began, start = SystemClock().now(), time.monotonic()
    code = pytest.main(["-m", "soak", "-o", f"timeout={TIMEOUT}", *arguments], plugins=[tally])
    report = written(tally.outcomes, began, time.monotonic() - start)
    if arguments:
        sys.stdout.write(f"\n{report}")
    elif tally.outcomes:
        NOTES.write_text(renewed(NOTES.read_text(), report))
    return int(code)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
