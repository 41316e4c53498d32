"""How often a repeated trial is made: a few times in `make test`, many times in `make soak`.

One setting decides, `MUSTER_TRIALS`: `test` (the default) or `soak`. Every test that asks here bears the marker `soak` with its
number of trials, so that `make soak` can choose exactly those tests and say how many trials there were.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

SETTING = "MUSTER_TRIALS"
_chosen = os.environ.get(SETTING) or "test"
if _chosen not in {"test", "soak"}:
    raise pytest.UsageError(f'{SETTING} is "{_chosen}": test or soak')
SOAKING = _chosen == "soak"


def trials(test: int, soak: int) -> int:
    """The number that applies now."""
    return soak if SOAKING else test


def soaked(count: int) -> pytest.MarkDecorator:
    """Marks a test that makes `count` trials in one go."""
    return pytest.mark.soak(trials=count)


def soak_only(count: int) -> pytest.MarkDecorator:
    """Marks a test that makes `count` trials in a soak and is left out of `make test`, where another holds its promise."""
    return pytest.mark.soak(trials=count, only=True)


def repeated(test: int, soak: int) -> Callable[[Any], Any]:
    """Runs a test once per trial; its argument `trial` counts from 0 and seeds whatever the test draws."""

    def decorate(function: Any) -> Any:
        return soaked(1)(pytest.mark.parametrize("trial", range(trials(test, soak)))(function))

    return decorate


def examples(test: int, soak: int) -> Callable[[Any], Any]:
    """So many examples for a hypothesis test; time-outs are pytest's."""

    def decorate(function: Any) -> Any:
        count = trials(test, soak)
        return soaked(count)(settings(max_examples=count)(function))

    return decorate


def load_profile() -> None:
    """What else hypothesis does: in a soak it looks for new examples, in a test run it makes the same ones every time."""
    settings.register_profile("test", deadline=None, derandomize=True, database=None)
    settings.register_profile("soak", deadline=None, print_blob=True)
    settings.load_profile(_chosen)
