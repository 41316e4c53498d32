"""What a soak notes of its run."""

from datetime import UTC, datetime

import pytest

from bench.soak import APART, Outcome, Tally, renewed, written

BEGAN = datetime(2026, 11, 21, 9, tzinfo=UTC)


def report(name: str, when: str, outcome: str) -> pytest.TestReport:
    return pytest.TestReport(name, (name, 1, name), {}, outcome, None, when, duration=1.0)  # type: ignore[arg-type]


def test_the_cases_of_a_test_are_added_up_and_a_failed_set_up_is_a_failure() -> None:
    tally = Tally()
    for trial, when, outcome in [(0, "call", "passed"), (1, "call", "failed"), (2, "setup", "failed"), (3, "setup", "skipped")]:
        tally.pytest_runtest_logreport(report(f"tests/a.py::test_a[{trial}]", when, outcome))
    assert tally.outcomes == {"tests/a.py::test_a": Outcome(trials=0, passed=1, failed=2, skipped=1, seconds=4.0)}
    assert tally.outcomes["tests/a.py::test_a"].verdict == "2 of 3 cases failed"


def test_the_notes_tell_date_counts_and_what_failed() -> None:
    outcomes = {"tests/a.py::test_a": Outcome(trials=7, passed=7, seconds=3), "tests/b.py::test_b": Outcome(trials=2, failed=1)}
    text = written(outcomes, BEGAN, 90)
    assert "on 2026-11-21: 9 trials of 2 tests in 1.5 minutes,\n1 cases failed." in text
    assert "| `tests/a.py` test_a | 7 | 3 | passed |" in text
    assert "| `tests/b.py` test_b | 2 | 0 | 1 of 1 cases failed |" in text


def test_a_run_leaves_alone_what_people_wrote_beside_the_last_one() -> None:
    assert renewed(f"# the last run\n\n{APART}\n\nby hand\n", "# this run\n") == f"# this run\n\n{APART}\n\nby hand\n"
    assert renewed("# the last run\n", "# this run\n") == "# this run\n"
