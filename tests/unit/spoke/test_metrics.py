"""What an agent tells of itself: bounded numbers, and neither its cluster's name nor a hub's."""

from datetime import timedelta

import pytest

from machinery.clock import ManualClock
from machinery.errors import ForbiddenError
from machinery.identity import HubId
from spoke.domain.hubs import Decision, HubState, ListedHub, Standing, Why
from spoke.metrics import registry_of
from spoke.ports import HubLostError, Loss
from spoke.progress import Progress, Role

ONE, TWO, THREE = (HubId(f"3f9f6a3e-58a6-4b6c-9a0e-1f5c3c2b7d1{number}") for number in range(3))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def progress(clock: ManualClock) -> Progress:
    return Progress(clock)


def lines(progress: Progress) -> set[str]:
    return {line for line in registry_of(progress).text().splitlines() if line.startswith("muster_")}


def test_an_agent_that_begins_is_not_ready_and_tells_no_beat(progress: Progress) -> None:
    told = lines(progress)
    assert {"muster_spoke_ready 0", "muster_spoke_live 1", "muster_spoke_works 1"} <= told
    assert not [line for line in told if "last_acknowledged" in line or "cluster_available" in line]


def test_the_instant_of_a_beat_is_told_and_not_its_age(progress: Progress, clock: ManualClock) -> None:
    at = clock.now().timestamp()
    progress.beat()
    clock.advance(timedelta(seconds=20))
    told = lines(progress)
    assert f"muster_spoke_last_acknowledged_heartbeat_timestamp_seconds {at!r}" in told
    assert {"muster_spoke_ready 1", "muster_spoke_heartbeats_acknowledged_total 1"} <= told


def test_hubs_are_told_by_state_and_their_certificates_by_side(progress: Progress, clock: ManualClock) -> None:
    now = clock.now()
    hubs = (
        ListedHub(ONE, "hub-a", "https://a", HubState.READY, now + timedelta(days=9)),
        ListedHub(TWO, "hub-b", "https://b", HubState.READY, now + timedelta(days=3)),
        ListedHub(THREE, "hub-c", "https://c", HubState.LOST, now + timedelta(days=5)),
    )
    made = Decision(ONE, Why.FAILED_OVER, "the hub hub-b is lost")
    progress.standing = Standing(ONE, 1, hubs, made, now)
    progress.standing = Standing(ONE, 2, hubs, made, now)
    told = lines(progress)
    assert {'muster_spoke_hubs{state="ready"} 2', 'muster_spoke_hubs{state="lost"} 1'} <= told
    assert 'muster_spoke_hubs{state="denied"} 0' in told
    ends = {side: (now + timedelta(days=days)).timestamp() for side, days in (("owner", 9), ("reserve", 3))}
    assert {f'muster_spoke_certificate_expiry_timestamp_seconds{{hub="{side}"}} {end!r}' for side, end in ends.items()} <= told
    assert 'muster_spoke_failover_total{reason="HubFailedOver"} 1' in told, "one decision is counted once"
    assert not [line for line in told if "hub-a" in line or ONE in line]


def test_troubles_are_told_by_cause(progress: Progress) -> None:
    for error in (HubLostError("silent", Loss.SILENT), HubLostError("silent", Loss.SILENT), ForbiddenError("no")):
        progress.troubled(error, timedelta(), "trying again")
    told = lines(progress)
    assert {'muster_spoke_troubles_total{cause="silent"} 2', 'muster_spoke_troubles_total{cause="Forbidden"} 1'} <= told


def test_a_process_that_stands_by_does_not_work_and_one_without_its_lease_does(progress: Progress) -> None:
    progress.role = lambda: Role("stands by", "other")
    assert "muster_spoke_works 0" in lines(progress)
    progress.role = lambda: Role("works without its Lease, and writes nothing")
    assert "muster_spoke_works 1" in lines(progress)


@pytest.mark.parametrize("verdict", [True, False])
def test_the_verdict_on_the_cluster_is_told(progress: Progress, *, verdict: bool) -> None:
    progress.verdict = lambda: verdict
    assert f"muster_spoke_cluster_available {int(verdict)}" in lines(progress)
