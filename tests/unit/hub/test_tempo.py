"""How often agents are asked to beat, by how many there are."""

from datetime import timedelta

import pytest

from hub.rpc.tempo import Tempo

TEN = timedelta(seconds=10)
LEASE = timedelta(seconds=60)


@pytest.mark.parametrize(
    ("sessions", "lease", "interval"),
    [
        (0, LEASE, 10),
        (400, LEASE, 10),  # 40 a second
        (401, LEASE, 15),  # in steps, so that not every new session changes what all are told
        (600, LEASE, 15),
        (1_000, LEASE, 25),
        (10_000, LEASE, 30),  # twice a lease
        (10_000, timedelta(seconds=200), 100),
        (10_000, timedelta(seconds=12), 10),  # never shorter for being many
        (10_000, timedelta(seconds=4), 4),  # never longer than the lease
        (1, timedelta(seconds=4), 4),
    ],
)
def test_the_more_agents_the_more_seldom_each_beats_but_twice_a_lease(sessions: int, lease: timedelta, interval: int) -> None:
    assert Tempo(TEN, 40, lambda: sessions).of(lease) == timedelta(seconds=interval)


def test_without_a_bound_their_number_changes_nothing() -> None:
    assert Tempo(TEN, 0, lambda: 1_000_000).of(LEASE) == TEN


def test_a_replica_gets_about_as_many_beats_as_it_is_to() -> None:
    for sessions in range(401, 1_200):
        interval = Tempo(TEN, 40, [None].__mul__(sessions).__len__).of(LEASE)
        assert 26 <= sessions / interval.total_seconds() <= 40
