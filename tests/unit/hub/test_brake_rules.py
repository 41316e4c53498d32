"""When the brake is put on, and when it lets go."""

from dataclasses import replace
from datetime import timedelta

import pytest

from hub.domain.brake import Brake, Limits, decoded, encoded
from machinery.clock import ManualClock

NOW = ManualClock().now()
MINUTE = timedelta(minutes=1)
LIMITS = Limits()
HELD = Brake(since=NOW, silent=30, fleet=100)


@pytest.mark.parametrize(
    ("silent", "fleet", "holds"),
    [(9, 10, False), (10, 10, True), (10, 49, True), (10, 50, False), (20, 100, False), (21, 100, True), (0, 0, False)],
)
def test_it_takes_ten_clusters_and_more_than_the_share(silent: int, fleet: int, holds: bool) -> None:  # noqa: FBT001 - a table's column
    found = Brake().judged(LIMITS, silent, fleet, NOW)
    assert found == (Brake(since=NOW, silent=silent, fleet=fleet) if holds else Brake())


@pytest.mark.parametrize(("silent", "fleet", "holds"), [(30, 100, True), (11, 100, True), (10, 100, False), (4, 10, False)])
def test_it_lets_go_when_half_of_what_puts_it_on_is_left(silent: int, fleet: int, holds: bool) -> None:  # noqa: FBT001 - a table's column
    found = HELD.judged(LIMITS, silent, fleet, NOW + MINUTE)
    assert found == (HELD if holds else Brake())


def test_a_share_of_zero_is_no_brake() -> None:
    none = replace(LIMITS, share=0.0)
    assert not Brake().judged(none, 1_000, 1_000, NOW).holds
    assert not HELD.judged(none, 1_000, 1_000, NOW).holds


def test_while_it_holds_all_count_that_fell_silent_in_its_window_and_since() -> None:
    assert Brake().counts_from(LIMITS, NOW) == NOW - LIMITS.window
    assert HELD.counts_from(LIMITS, NOW + 500 * MINUTE) == NOW - LIMITS.window


def test_once_an_operator_released_it_only_later_silences_count() -> None:
    released = HELD.let_go(NOW + MINUTE)
    assert not released.holds
    assert released.counts_from(LIMITS, NOW + 2 * MINUTE) == NOW + MINUTE
    assert released.judged(LIMITS, 50, 100, NOW + 5 * MINUTE).released == NOW + MINUTE


@pytest.mark.parametrize("brake", [Brake(), HELD, HELD.let_go(NOW)])
def test_it_is_kept_as_text(brake: Brake) -> None:
    assert decoded(encoded(brake)) == brake


def test_before_anything_was_kept_it_does_not_hold() -> None:
    assert decoded(None) == Brake()
