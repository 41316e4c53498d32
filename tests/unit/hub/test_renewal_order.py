"""An order to renew, as it stands at a cluster: what it means, and for how long."""

from datetime import UTC, datetime, timedelta

import pytest

from hub.domain.renewal import LATE, LONGEST, RENEW, Order, checked, order_of, with_order
from machinery.errors import InvalidError

AT = datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)
HOUR, MOMENT = timedelta(hours=1), timedelta(microseconds=1)


def test_it_is_kept_to_the_microsecond_as_an_interval() -> None:
    order = Order(AT, HOUR)
    cluster = with_order({"metadata": {"name": "edge", "annotations": {"other": "stays"}}}, order)
    assert cluster["metadata"]["annotations"] == {"other": "stays", RENEW: "2026-01-01T12:00:00.123456Z/PT3600S"}
    assert order_of(cluster) == order


@pytest.mark.parametrize("text", ["", "soon", "2026-01-01T12:00:00Z", "2026-01-01T12:00:00Z/PT", "2026-01-01T12:00:00/PT1S"])
def test_what_is_no_interval_is_no_order(text: str) -> None:
    assert order_of({"metadata": {"annotations": {RENEW: text}}}) is None


def test_it_means_what_was_issued_before_it() -> None:
    order = Order(AT, HOUR)
    assert [order.asks(AT + each) for each in (-MOMENT, timedelta(), MOMENT)] == [True, False, False]


def test_who_comes_late_has_a_moment_so_that_a_fleet_does_not_renew_at_once() -> None:
    assert Order(AT, HOUR).left(AT + HOUR / 4) == HOUR * 3 / 4
    assert Order(AT, HOUR).left(AT + 100 * HOUR) == LATE
    assert Order(AT, LATE / 2).left(AT + HOUR) == LATE / 2
    assert Order(AT, timedelta()).left(AT) == timedelta(), "at once is at once"


@pytest.mark.parametrize("within", [-MOMENT, LONGEST + MOMENT])
def test_no_order_is_for_longer_than_a_week(within: timedelta) -> None:
    with pytest.raises(InvalidError, match="within"):
        checked(within)
    assert checked(LONGEST) == LONGEST
