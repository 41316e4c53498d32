"""How fast events may come."""

from hub.apiserver.events import Pace, Rate


def test_a_burst_goes_through_and_then_the_even_rate() -> None:
    pace = Pace(Rate(per_second=2, burst=3))
    assert [pace.wait("east", 100.0) for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert pace.wait("east", 100.5) == 0.0
    assert pace.wait("east", 100.5) == 0.5


def test_one_that_is_held_back_does_not_count() -> None:
    pace = Pace(Rate(per_second=1, burst=1))
    assert pace.wait("east", 0.0) == 0.0
    assert [pace.wait("east", 0.0) for _ in range(3)] == [1.0] * 3
    assert pace.wait("east", 1.0) == 0.0


def test_namespaces_do_not_hold_up_one_another() -> None:
    pace = Pace(Rate(per_second=1, burst=1))
    assert [pace.wait(name, 0.0) for name in ("east", "west", "east")] == [0.0, 0.0, 1.0]


def test_a_quiet_namespace_has_its_burst_again_and_no_more() -> None:
    pace = Pace(Rate(per_second=1, burst=2))
    assert [pace.wait("east", 0.0) for _ in range(3)] == [0.0, 0.0, 1.0]
    assert [pace.wait("east", 1000.0) for _ in range(3)] == [0.0, 0.0, 1.0]
