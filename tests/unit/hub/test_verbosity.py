"""How much all replicas log: an operator's order, and for how long it counts."""

from datetime import timedelta

import pytest

from hub.domain.verbosity import LEVELS, LONGEST, Order
from hub.services import verbosity
from machinery import logs
from machinery.clock import ManualClock
from machinery.errors import InvalidError
from tests.fakes.memory_store import MemoryStore


def standing(store: MemoryStore) -> Order | None:
    return store.transact(verbosity.standing)


def test_an_order_counts_for_its_time_and_no_longer(store: MemoryStore, clock: ManualClock) -> None:
    store.transact(verbosity.give, "debug", timedelta(minutes=10), "admin")
    clock.advance(timedelta(seconds=599))
    told = standing(store)
    assert told is not None
    assert (told.level, told.by) == ("debug", "admin")
    clock.advance(timedelta(seconds=1))
    assert standing(store) is None


def test_an_order_takes_the_place_of_the_one_before_and_can_be_taken_back(store: MemoryStore) -> None:
    store.transact(verbosity.give, "debug", timedelta(minutes=10), "admin")
    store.transact(verbosity.give, "error", timedelta(minutes=10), "admin")
    told = standing(store)
    assert told is not None
    assert told.level == "error"
    store.transact(verbosity.take_back)
    assert standing(store) is None


@pytest.mark.parametrize(
    ("level", "lasts"),
    [
        ("trace", timedelta(minutes=1)),
        ("", timedelta(minutes=1)),
        ("debug", timedelta()),
        ("debug", LONGEST + timedelta(seconds=1)),
    ],
)
def test_what_is_no_level_or_lasts_too_long_is_refused(store: MemoryStore, level: str, lasts: timedelta) -> None:
    with pytest.raises(InvalidError):
        store.transact(verbosity.give, level, lasts, "admin")
    assert standing(store) is None


def test_the_levels_that_can_be_ordered_are_those_of_the_log() -> None:
    assert LEVELS == logs.LEVELS
