"""What probes are told."""

from datetime import timedelta

from machinery.clock import ManualClock
from spoke.progress import STUCK, Progress


def test_ready_for_as_long_as_the_lease_lasts_after_an_acknowledged_beat() -> None:
    clock = ManualClock()
    progress = Progress(clock)
    progress.lease(timedelta(seconds=2))
    assert not progress.ready().ok
    progress.beat()
    clock.advance(timedelta(seconds=2))
    assert progress.ready().ok
    clock.advance(timedelta(milliseconds=1))
    assert not progress.ready().ok
    assert "2 s ago" in progress.ready().text


def test_not_ready_names_the_step_and_its_trouble() -> None:
    progress = Progress(ManualClock())
    progress.enter("opening a session with the hub")
    progress.fail("connection refused")
    assert "opening a session with the hub: connection refused" in progress.ready().text
    progress.enter("reading the stored credential")
    assert "connection refused" not in progress.ready().text


def test_a_trouble_is_told_while_the_way_there_is_gone_again() -> None:
    progress = Progress(ManualClock())
    for step in ("reading", "dialling"):
        progress.enter(step)
    progress.fail("connection refused")
    for step in ("reading", "dialling"):
        progress.enter(step)
        assert f"{step}: connection refused" in progress.ready().text
    progress.enter("waiting")
    assert "connection refused" not in progress.ready().text


def test_alive_unless_a_piece_of_work_never_ends() -> None:
    clock = ManualClock()
    progress = Progress(clock)
    with progress.working("status"):
        clock.advance(STUCK)
        assert progress.live().ok
        clock.advance(timedelta(seconds=1))
        assert not progress.live().ok
        assert "status" in progress.live().text
    assert progress.live().ok
    clock.advance(timedelta(days=1))
    assert progress.live().ok
