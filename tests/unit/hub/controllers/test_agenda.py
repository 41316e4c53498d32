"""Names that wait, each for its own time."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import pytest

from hub.controllers.agenda import Agenda, Attempts
from machinery.clock import ManualClock
from machinery.controller import PartlyFailedError
from machinery.errors import ConflictError
from machinery.identity import ClusterName

A, B, C = (ClusterName(name) for name in "abc")
SECOND = timedelta(seconds=1)


def waiting(clock: ManualClock) -> Agenda:
    agenda = Agenda(clock)
    for name, seconds in ((A, 10), (B, 12), (C, 20)):
        agenda.wait(name, seconds * SECOND)
    return agenda


def test_what_is_due_soon_comes_with_what_is_due_now() -> None:
    clock = ManualClock()
    agenda = waiting(clock)
    clock.advance(10 * SECOND)
    assert agenda.take(10, ahead=5 * SECOND) == (A, B)
    assert agenda.pause() == 10 * SECOND


def test_what_is_due_soon_is_left_where_nothing_is_due_now() -> None:
    clock = ManualClock()
    agenda = waiting(clock)
    clock.advance(9 * SECOND)
    agenda.news([C])
    assert agenda.take(10, ahead=5 * SECOND) == (C,)
    assert agenda.pause() == SECOND


def test_a_time_that_was_replaced_makes_nothing_due() -> None:
    clock = ManualClock()
    agenda = waiting(clock)
    agenda.wait(A, 30 * SECOND)
    clock.advance(10 * SECOND)
    assert agenda.take(10, ahead=5 * SECOND) == ()
    assert agenda.pause() == 2 * SECOND


def test_times_that_were_replaced_are_forgotten_also_where_they_are_far_away() -> None:
    """A cluster with a lease of a day reports every minute, and is looked at each time."""
    clock = ManualClock()
    agenda = waiting(clock)
    for _ in range(10_000):
        agenda.news([A, B])
        for name in agenda.take(10):
            agenda.wait(name, timedelta(days=5))
    assert agenda.remembered < 200
    clock.advance(20 * SECOND)
    assert agenda.take(10) == (C,)
    clock.advance(timedelta(days=5))
    assert set(agenda.take(10)) == {A, B}


async def test_whoever_fails_is_named_with_the_reason_and_so_is_who_does_not() -> None:
    async def look(names: Sequence[ClusterName]) -> Mapping[ClusterName, None]:
        for name in names:
            if name != B:
                raise ConflictError(f"not {name}")
        return dict.fromkeys(names)

    attempts = Attempts[None]()
    await attempts.make((A, B, C), look)
    with pytest.raises(PartlyFailedError, match="2 of 3 failed, the last of them c: not c") as failed:
        attempts.ended(None)
    assert {name: str(error) for name, error in failed.value.failed.items()} == {"a": "not a", "c": "not c"}
    assert set(failed.value.done) == {"b"}
