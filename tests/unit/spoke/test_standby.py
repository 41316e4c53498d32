"""The hubs that an agent is on standby at: registered, renewed, recovered, reported; in virtual time: weeks pass at once."""

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from machinery.errors import ForbiddenError
from machinery.pki import key_matches, parse_certificate
from machinery.runtime.clock import OffsetClock
from spoke.bootstraps.listing import BootstrapListing
from spoke.credentials.kubeconfigs import stored_connection
from spoke.credentials.trust_bundle import fingerprints
from spoke.domain.hubs import HubState
from spoke.domain.schedule import rotate_at
from spoke.failover.standby import SWEEP_DELAY
from tests.fakes.hub import MemoryHub
from tests.fakes.several import NAMES, UID, A, B, C, ReserveStage, come, ready, sessions

DAY, HOUR = timedelta(days=1), timedelta(hours=1)


@pytest_asyncio.fixture(loop_scope="function")
async def stage() -> ReserveStage:
    return ReserveStage.at_once()


async def pass_time(duration: timedelta) -> None:
    await asyncio.sleep(duration.total_seconds())


async def test_every_hub_but_the_busy_one_is_registered_at_and_informed_of_a_new_owner_at_once(stage: ReserveStage) -> None:
    async with stage.running() as standby:
        await come(ready(stage))
        assert standby.epoch == 7
        for hub in (B, C):
            contents = await stage.contents(hub)
            assert key_matches(contents["tls.crt"], contents["tls.key"])
            assert parse_certificate(contents["tls.crt"]).serial == stage.hubs[hub].issued[0]
            assert "pending.key" not in contents
            known = stage.hubs[hub].clusters[NAMES.cluster]
            assert (known.cluster_uid, known.owner, known.epoch) == (UID, A, 7)
            assert stage.standby.hubs[hub].credential_ends_at == parse_certificate(contents["tls.crt"]).not_after
        assert (sessions(list(stage.hubs.values())), stage.hubs[A].calls) == (0, [])
        assert await stage.contents(A) == {}
        stage.attend(replace(stage.post, owner=B, busy=B, epoch=8))
        await come(lambda: stage.hubs[C].clusters[NAMES.cluster].owner == B, within=timedelta(seconds=2))
        assert stage.hubs[C].clusters[NAMES.cluster].epoch == 8
        assert B not in stage.standby.hubs
        stage.hubs[C].clusters[NAMES.cluster].epoch = 99
        await come(lambda: standby.epoch == 99, within=10 * HOUR)
    assert asyncio.all_tasks() == {asyncio.current_task()}, "no task is left behind"


class _Noting(list[str]):
    """Calls of a hub, with when they came."""

    def append(self, call: str) -> None:
        super().append(f"{call} {asyncio.get_running_loop().time():.0f}")


async def test_at_rest_a_hub_costs_one_call_for_each_time_that_it_asks_for_and_no_two_hubs_in_step(stage: ReserveStage) -> None:
    for hub in (B, C):
        stage.hubs[hub].again_after = timedelta(minutes=10)
    async with stage.running():
        await come(ready(stage))
        noted = [_Noting(), _Noting()]
        stage.hubs[B].calls, stage.hubs[C].calls = noted
        await pass_time(DAY)
    for calls in noted:
        assert {call.split()[0] for call in calls} == {"stand_by"}
        assert 144 <= len(calls) <= 144 / 0.75 + 1
    assert not {*noted[0][10:]} & {*noted[1][10:]}


async def test_hub_that_has_not_accepted_the_cluster_is_reported_once_and_noticed_when_it_does(stage: ReserveStage) -> None:
    stage.hubs[B].accept = False
    async with stage.running():
        await come(lambda: stage.state(B) is HubState.NOT_ACCEPTED and stage.state(C) is HubState.READY)
        assert stage.count_of(B, "HubNotAccepted") == 1
        assert ("HubNotAccepted", "the hub hub-b has not accepted this cluster: hubctl accept it there") in stage.recorded
        await pass_time(2 * HOUR)
        stage.hubs[B].set_accepted(NAMES.cluster, accepted=True)
        await come(ready(stage), within=timedelta(minutes=2))
        assert stage.count_of(B, "HubNotAccepted") == 1


async def test_pending_request_waits_without_calls_survives_a_restart_and_is_replaced_when_denied(stage: ReserveStage) -> None:
    stage.hubs[B].approve = stage.hubs[C].approve = False
    async with stage.running():
        await come(lambda: "follow_request" in stage.hubs[B].calls and stage.hubs[C].requests)
        stage.hubs[C].deny_request(next(iter(stage.hubs[C].requests)))
        await come(lambda: stage.state(C) is HubState.DENIED)
        stage.hubs[C].approve = True
        await come(ready(stage, C))
        calls = len(stage.hubs[B].calls)
        await asyncio.sleep(600)
        assert (len(stage.hubs[B].calls), stage.state(B)) == (calls, HubState.REGISTERING)
    async with stage.running():
        await come(ready(stage, C))
        stage.hubs[B].approve_request(next(iter(stage.hubs[B].requests)))
        await come(ready(stage))
    assert len(stage.hubs[B].requests) == len(stage.hubs[B].issued) == 1
    assert len(stage.hubs[C].requests) == 2


async def test_denied_cluster_keeps_its_registration_and_a_hub_that_is_away_is_asked_with_pauses(stage: ReserveStage) -> None:
    async with stage.running():
        await come(ready(stage))
        stage.hubs[B].faults["stand_by"] = ForbiddenError("denied")
        await come(lambda: stage.state(B) is HubState.DENIED, within=10 * HOUR)
        await pass_time(DAY)
        stage.hubs[B].faults.clear()
        await come(ready(stage))
        stage.hubs[B].away = True
        await come(lambda: stage.state(B) is HubState.UNREACHABLE, within=10 * HOUR)
        assert stage.state(C) is HubState.READY
        calls = len(stage.hubs[B].calls)
        await pass_time(HOUR)
        assert len(stage.hubs[B].calls) - calls < 3600 / 5, "fully jittered up to 30 s"
        stage.hubs[B].away = False
        await come(ready(stage), within=timedelta(seconds=31))
    assert len(stage.hubs[B].issued) == 1


async def test_hub_without_any_credential_is_lost_until_there_is_a_new_bootstrap_kubeconfig(stage: ReserveStage) -> None:
    stage.hubs[B].away = True
    async with stage.running():
        await come(lambda: stage.trouble(B))
        assert stage.state(B) is HubState.REGISTERING
        await pass_time(3 * HOUR)
        stage.hubs[B].away = False
        await come(lambda: stage.state(B) is HubState.LOST)
        assert stage.count_of(B, "HubLost") == 1
        assert any("hubctl create bootstrap-kubeconfig" in message for _, message in stage.recorded)
        await pass_time(DAY)
        assert stage.count_of(B, "HubLost") == 1
        listing = BootstrapListing((stage.listing.hubs[0], stage.bootstrap(B), stage.listing.hubs[2]))
        stage.attend(replace(stage.post, listing=listing))
        await come(ready(stage), within=timedelta(seconds=5))
        assert not stage.trouble(B)
        assert not stage.trouble(C)


async def test_each_slot_is_renewed_at_its_own_instant_with_all_bootstrap_credentials_long_expired(stage: ReserveStage) -> None:
    for each in stage.hubs.values():
        each.again_after = 2 * DAY
    async with stage.running():
        await come(ready(stage))
        leaves = {hub: parse_certificate((await stage.contents(hub))["tls.crt"]) for hub in (B, C)}
        dues = {hub: rotate_at(leaf.serial, leaf.not_before, leaf.not_after) for hub, leaf in leaves.items()}
        for hub, due in sorted(dues.items(), key=lambda each: each[1]):
            await asyncio.sleep((due - stage.clock.now()).total_seconds() - 5)
            assert len(stage.hubs[hub].issued) == 1
            await come(lambda hub=hub: len(stage.hubs[hub].issued) == 2, within=timedelta(minutes=2))  # type: ignore[misc]
        await pass_time(75 * DAY)
        assert ready(stage)()
        for hub in (B, C):
            leaf = parse_certificate((await stage.contents(hub))["tls.crt"])
            assert leaf.serial == stage.hubs[hub].issued[-1]
            assert leaf.not_after > stage.clock.now()
            assert len(stage.hubs[hub].issued) in range(4, 7)
    assert sessions(list(stage.hubs.values())) == 0


async def test_certificate_that_expired_while_its_hub_was_away_is_recovered(stage: ReserveStage) -> None:
    async with stage.running():
        await come(ready(stage))
    await pass_time(40 * DAY)
    stage.hubs[B].away = True
    async with stage.running():
        await come(lambda: stage.trouble(B))
        assert stage.state(B) is not HubState.LOST, "its recovery certificate is good"
        stage.hubs[B].away = False
        await come(ready(stage))
        assert "recover submit_request" in stage.hubs[B].calls
        assert stage.count_of(B, "HubLost") == 0


async def test_credential_that_is_not_renewed_is_reported_before_it_ends(stage: ReserveStage) -> None:
    async with stage.running():
        stage.hubs[B].lifetime = DAY
        await come(ready(stage))
        stage.hubs[B].approve = False
        await pass_time(21 * HOUR)
        assert stage.count_of(B, "HubCredentialEndsSoon") == 0
        await pass_time(2 * HOUR)
        assert stage.count_of(B, "HubCredentialEndsSoon") == 1
        assert any("hub-b ends at" in message for _, message in stage.recorded)


async def test_hub_that_refuses_the_new_certificate_is_called_with_the_one_before(stage: ReserveStage) -> None:
    hub = stage.hubs[B]
    async with stage.running():
        await come(ready(stage))
        first = (await stage.contents(B))["tls.crt"]
        leaf = parse_certificate(first)
        hub.refuse_new = True
        due = rotate_at(leaf.serial, leaf.not_before, leaf.not_after) - stage.clock.now()
        await asyncio.sleep(due.total_seconds() + 60)
        assert 2 <= len(hub.issued) <= 5, "it tries again, and not in a circle"
        assert stage.count_of(B, "HubLost") == 0, "the one before is good"
        hub.refuse_new = False
        await asyncio.sleep(1200)
        renewed = (await stage.contents(B))["tls.crt"]
        assert renewed != first
        assert (parse_certificate(renewed).serial, stage.state(B)) == (hub.issued[-1], HubState.READY)
        assert "bootstrap" not in " ".join(hub.requests[each].requester for each in list(hub.requests)[1:])


async def test_refused_credential_is_reported_once_and_replaced_where_there_is_a_bootstrap_one(stage: ReserveStage) -> None:
    """At B the bootstrap credential has expired by then; at C the CA goes, and the recovery certificate is good."""
    async with stage.running():
        await come(ready(stage))
        stage.hubs[B].revoked.update(stage.hubs[B].issued)
        stage.hubs[C].outlived.update(stage.hubs[C].issued)
        await come(lambda: len(stage.hubs[C].issued) == 2, within=10 * HOUR)
        await come(ready(stage, C))
        assert "recover submit_request" in stage.hubs[C].calls
        await pass_time(7 * HOUR)
        assert (stage.state(B), stage.count_of(B, "HubLost")) == (HubState.LOST, 1)
        stage.attend(replace(stage.post, listing=BootstrapListing(tuple(stage.bootstrap(hub, life=DAY) for hub in (A, B, C)))))
        await come(lambda: len(stage.hubs[B].issued) == 2, within=10 * HOUR)
        await come(ready(stage))
        stage.hubs[B].revoked.update(stage.hubs[B].issued)
        await come(lambda: len(stage.hubs[B].issued) == 3, within=10 * HOUR)
        await come(ready(stage))
    assert len(stage.hubs[B].clusters) == 1


async def test_each_hub_has_its_own_clock(stage: ReserveStage) -> None:
    """One is 40 days ahead, the other 40 behind: neither throws the other's credential away, and nobody renews too early."""
    for hub, by in ((B, 40 * DAY), (C, -40 * DAY)):
        clock = OffsetClock(stage.clock)
        clock.set_time(stage.clock.now() + by)
        stage.hubs[hub] = MemoryHub(clock, hub_id=hub)
        stage.hubs[hub].again_after = 6 * HOUR
    stage.listing = BootstrapListing(tuple(stage.bootstrap(hub) for hub in (A, B, C)))
    stage.attend(replace(stage.post, listing=stage.listing))
    async with stage.running():
        await come(ready(stage))
        await pass_time(20 * DAY)
        assert all(len(stage.hubs[hub].issued) == 1 for hub in (B, C))
        await pass_time(5 * DAY)
        assert all(len(stage.hubs[hub].issued) == 2 for hub in (B, C))


async def test_slot_is_handed_over_and_back_without_a_second_writer(stage: ReserveStage) -> None:
    async with stage.running():
        await come(ready(stage))
        before = await stage.contents(B)
        stage.attend(replace(stage.post, busy=B, owner=B, epoch=8))
        await come(lambda: stage.state(A) is HubState.READY)
        calls = len(stage.hubs[B].calls)
        await pass_time(26 * DAY)
        assert len(stage.hubs[B].calls) == calls, "the running registration renews it"
        assert await stage.contents(B) == before
        stage.attend(replace(stage.post, busy=A, owner=A, epoch=9))
        await come(ready(stage))
        assert stage.hubs[B].clusters[NAMES.cluster].owner == A
        assert len(stage.hubs[B].requests) == 2, "the one that it had, and the renewal that was due"
        stage.attend(replace(stage.post, busy=B, owner=B, epoch=10))
        await come(lambda: stage.state(A) is HubState.READY)
        stage.attend(replace(stage.post, busy=C))
        await come(lambda: stage.state(B) is HubState.READY)
        assert stage.hubs[B].clusters[NAMES.cluster].owner == A, "the agent does not report a departing owner to that owner"


async def test_hub_that_does_not_know_the_call_is_registered_renewed_and_watched_all_the_same(stage: ReserveStage) -> None:
    stage.hubs[B].plain, stage.hubs[B].lifetime = True, DAY
    async with stage.running():
        await come(ready(stage))
        assert stage.hubs[B].calls.count("stand_by") == 1
        await pass_time(21 * HOUR)
        assert len(stage.hubs[B].issued) == 2
        stage.hubs[B].away = True
        await come(lambda: stage.state(B) is HubState.UNREACHABLE, within=10 * HOUR)


async def test_next_ca_of_a_hub_is_stored_and_confirmed(stage: ReserveStage) -> None:
    async with stage.running():
        await come(ready(stage))
        own, further = (stage.hubs[each].authority.certificate for each in (B, C))
        stage.hubs[B].bundle = own + further
        await pass_time(DAY)
        first = await stage.contents(B)
        assert fingerprints(stored_connection(first).address.ca) == fingerprints(own + further)
        assert stage.hubs[B].trusted[NAMES.cluster] == fingerprints(own + further), "and it says so"
        await pass_time(DAY)
        assert await stage.contents(B) == first


@pytest.mark.parametrize("whole", [True, False])
async def test_slot_of_a_hub_off_the_list_is_deleted_once_the_whole_list_is_known(stage: ReserveStage, *, whole: bool) -> None:
    await stage.secrets.write("hub-kubeconfig-secret-dddddddd", {"tls.crt": b"x"}, None)
    await stage.secrets.write("hub-kubeconfig-secret-of-somebody", {"tls.crt": b"x"}, None)
    async with stage.running():
        await come(ready(stage))
        stage.attend(replace(stage.post, listing=BootstrapListing(stage.listing.hubs[:2], whole=whole)))
        await asyncio.sleep(SWEEP_DELAY.total_seconds() - 1)
        assert await stage.contents(C), "it may come back in a moment"
        await asyncio.sleep(2)
        assert bool(await stage.contents(C)) is not whole
        assert await stage.contents(B)
        assert C not in stage.standby.hubs
        await pass_time(SWEEP_DELAY)
    assert bool((await stage.secrets.read("hub-kubeconfig-secret-dddddddd")).contents) is not whole
    assert (await stage.secrets.read("hub-kubeconfig-secret-of-somebody")).contents, "others' secrets stay"


async def test_defect_at_one_hub_does_not_affect_another(stage: ReserveStage) -> None:
    stage.hubs[B].faults["stand_by"] = ZeroDivisionError("a defect")
    with capture_logs():  # to print a stack costs a second
        async with stage.running():
            await come(ready(stage, C))
            assert stage.state(B) is HubState.REGISTERING
            stage.hubs[B].faults.clear()
            await come(ready(stage))
