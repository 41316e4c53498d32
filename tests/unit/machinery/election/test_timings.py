"""Times of an election that do not fit together are refused, with the words for it."""

from datetime import timedelta

import pytest

from machinery.election import KUBERNETES, OPENSHIFT, Timings
from machinery.errors import InvalidError


def of(lease: float, deadline: float, retry: float, poll: float = 0.1) -> Timings:
    return Timings(*(timedelta(seconds=value) for value in (lease, deadline, retry, poll)))


def test_the_defaults_are_kubernetes_own_and_the_preset_is_openshifts() -> None:
    seconds = [
        [t.lease.total_seconds(), t.renew_deadline.total_seconds(), t.retry.total_seconds()] for t in (KUBERNETES, OPENSHIFT)
    ]
    assert seconds == [[15, 10, 2], [137, 107, 26]]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        ((10, 10, 2), "lease .10s. must be longer than the renew deadline .10s."),
        ((15, 10, 10), "longer than 1.2 times the retry period"),
        ((15, 2.4, 2), "longer than 1.2 times the retry period"),
        ((15, 10, 2, 0), "1ms or longer"),
        ((15, 10, 0.0001), "1ms or longer"),
    ],
)
def test_what_does_not_fit_is_refused(seconds: tuple[float, ...], words: str) -> None:
    with pytest.raises(InvalidError, match=words):
        of(*seconds)


def test_milliseconds_are_as_good_as_seconds() -> None:
    assert of(0.015, 0.01, 0.002, 0.001).attempt == timedelta(milliseconds=5)
