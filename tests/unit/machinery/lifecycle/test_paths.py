"""All paths are installed when everything expected has been, and not before the expectations are complete."""

import pytest

from machinery.clock import ManualClock
from machinery.lifecycle.paths import PathsInstalled
from machinery.lifecycle.signals import LifecycleSignal


def subject() -> tuple[PathsInstalled, LifecycleSignal]:
    complete = LifecycleSignal("MuxAndDiscoveryComplete", ManualClock())
    return PathsInstalled(complete), complete


def test_it_waits_for_the_last_of_them() -> None:
    paths, complete = subject()
    first, second = paths.expect("objects"), paths.expect("console")
    paths.seal()
    first()
    first()
    assert not complete.signaled
    second()
    assert complete.signaled


def test_whoever_is_early_does_not_make_it_complete_before_the_others_are_known() -> None:
    paths, complete = subject()
    paths.expect("objects")()
    assert not complete.signaled
    paths.seal()
    assert complete.signaled


def test_names_are_unique_and_come_in_time() -> None:
    paths, _ = subject()
    paths.expect("objects")
    with pytest.raises(ValueError, match="expected already"):
        paths.expect("objects")
    paths.seal()
    with pytest.raises(RuntimeError, match="too late"):
        paths.expect("console")
