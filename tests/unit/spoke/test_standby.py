"""The hubs that an agent keeps in reserve: registered, renewed, recovered, told; in virtual time: weeks pass at once."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from machinery.clock import OffsetClock
from machinery.errors import ForbiddenError
from machinery.pki import key_matches, parse_certificate
from spoke.bootstraps import Listing
from spoke.domain.hubs import HubState
from spoke.domain.rotation import rotate_at
from spoke.kubeconfigs import stored_connection
from spoke.standby import LEFT_AFTER
from spoke.trust import fingerprints
from tests.fakes.reserve import NAMES, UID, A, B, C, ReserveHub, ReserveStage, come, ready, sessions
from tests.fakes.virtual_time import in_virtual_time

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
Play = Callable[[ReserveStage], Awaitable[None]]


def played(play: Play) -> None:
    async def work() -> None:
        await play(ReserveStage.at_once())

    in_virtual_time(work())


def test_it_registers_at_every_hub_but_the_busy_one_and_opens_no_session() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
            for hub in (B, C):
                contents = await stage.contents(hub)
                assert key_matches(contents["tls.crt"], contents["tls.key"])
                assert parse_certificate(contents["tls.crt"]).serial == stage.hubs[hub].issued[0]
                assert "pending.key" not in contents
                known = stage.hubs[hub].clusters[NAMES.cluster]
                assert (known.cluster_uid, known.owner, known.epoch) == (UID, A, 7)
                listed = stage.standby.hubs[hub]
                assert listed.credential_ends_at == parse_certificate(contents["tls.crt"]).not_after
        assert sessions(list(stage.hubs.values())) == 0
        assert stage.hubs[A].calls == []
        assert await stage.contents(A) == {}

    played(play)


def test_every_hub_is_told_of_a_new_owner_at_once() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
            stage.attend(replace(stage.post, owner=B, busy=B, epoch=8))
            await come(lambda: stage.hubs[C].clusters[NAMES.cluster].owner == B, within=timedelta(seconds=2))
            assert stage.hubs[C].clusters[NAMES.cluster].epoch == 8
            assert B not in stage.standby.hubs

    played(play)


def test_at_rest_a_hub_costs_one_call_for_each_time_that_it_asks_for() -> None:
    async def play(stage: ReserveStage) -> None:
        for each in stage.hubs.values():
            each.again_after = timedelta(minutes=10)
        async with stage.running():
            await come(ready(stage))
            before = {hub: len(stage.hubs[hub].calls) for hub in (B, C)}
            await asyncio.sleep(DAY.total_seconds())
            for hub in (B, C):
                calls = stage.hubs[hub].calls[before[hub] :]
                assert set(calls) == {"stand_by"}
                assert 144 <= len(calls) <= 144 / 0.75 + 1

    played(play)


def test_two_hubs_that_answer_at_once_are_not_asked_in_step() -> None:
    async def play(stage: ReserveStage) -> None:
        asked: dict[str, list[float]] = {B: [], C: []}
        for hub in (B, C):
            stage.hubs[hub].again_after = timedelta(minutes=10)
            stage.hubs[hub].calls = _Noting(asked[hub])
        async with stage.running():
            await asyncio.sleep(DAY.total_seconds())
        assert not {round(at) for at in asked[B][10:]} & {round(at) for at in asked[C][10:]}

    played(play)


class _Noting(list[str]):
    def __init__(self, times: list[float]) -> None:
        super().__init__()
        self._times = times

    def append(self, call: str) -> None:
        del call
        self._times.append(asyncio.get_running_loop().time())


def test_a_hub_that_has_not_accepted_the_cluster_is_told_so_and_seen_when_it_does() -> None:
    async def play(stage: ReserveStage) -> None:
        stage.hubs[B].accept = False
        async with stage.running():
            await come(lambda: stage.state(B) is HubState.NOT_ACCEPTED and stage.state(C) is HubState.READY)
            assert stage.standby.counted[B, "HubNotAccepted"] == 1
            assert ("HubNotAccepted", "the hub hub-b has not accepted this cluster: hubctl accept it there") in stage.told
            await asyncio.sleep(DAY.total_seconds())
            stage.hubs[B].set_accepted(NAMES.cluster, accepted=True)
            await come(ready(stage), within=timedelta(minutes=2))
            assert stage.standby.counted[B, "HubNotAccepted"] == 1

    played(play)


def test_a_request_that_pends_waits_without_asking_and_survives_a_restart() -> None:
    async def play(stage: ReserveStage) -> None:
        stage.hubs[B].approve = False
        async with stage.running():
            await come(lambda: "follow_request" in stage.hubs[B].calls)
            calls = len(stage.hubs[B].calls)
            await asyncio.sleep(600)
            assert len(stage.hubs[B].calls) == calls
            assert stage.state(B) is HubState.REGISTERING
        async with stage.running():
            await come(ready(stage, C))
            stage.hubs[B].approve_request(next(iter(stage.hubs[B].requests)))
            await come(ready(stage))
        assert len(stage.hubs[B].requests) == len(stage.hubs[B].issued) == 1

    played(play)


def test_a_denied_request_is_told_and_followed_by_a_new_one() -> None:
    async def play(stage: ReserveStage) -> None:
        stage.hubs[B].approve = False
        async with stage.running():
            await come(lambda: stage.hubs[B].requests)
            stage.hubs[B].deny_request(next(iter(stage.hubs[B].requests)))
            await come(lambda: stage.state(B) is HubState.DENIED)
            stage.hubs[B].approve = True
            await come(ready(stage))
        assert len(stage.hubs[B].requests) == 2

    played(play)


def test_a_denied_cluster_is_told_and_no_reason_to_register_anew() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
            stage.hubs[B].refusal = ForbiddenError("denied")
            await come(lambda: stage.state(B) is HubState.DENIED, within=10 * HOUR)
            await asyncio.sleep(DAY.total_seconds())
            stage.hubs[B].refusal = None
            await come(ready(stage))
        assert len(stage.hubs[B].issued) == 1

    played(play)


def test_without_a_credential_and_any_way_to_one_a_hub_is_lost_until_there_is_a_new_bootstrap_kubeconfig() -> None:
    async def play(stage: ReserveStage) -> None:
        stage.hubs[B].away = True
        async with stage.running():
            await come(lambda: stage.standby.troubles.get(B))
            assert stage.state(B) is HubState.REGISTERING
            await asyncio.sleep(3 * 3600)
            stage.hubs[B].away = False
            await come(lambda: stage.state(B) is HubState.LOST)
            assert stage.standby.counted[B, "HubLost"] == 1
            assert "hubctl create bootstrap-kubeconfig" in stage.standby.troubles[B]
            await asyncio.sleep(DAY.total_seconds())
            assert stage.standby.counted[B, "HubLost"] == 1
            listing = Listing((stage.listing.hubs[0], stage.bootstrap(B), stage.listing.hubs[2]))
            stage.attend(replace(stage.post, listing=listing))
            await come(ready(stage), within=timedelta(seconds=5))
            assert stage.standby.troubles == {}

    played(play)


def test_each_slot_is_renewed_at_its_own_instant_with_all_bootstrap_credentials_long_expired() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
            leaves = {hub: parse_certificate((await stage.contents(hub))["tls.crt"]) for hub in (B, C)}
            dues = {hub: rotate_at(leaf.serial, leaf.not_before, leaf.not_after) for hub, leaf in leaves.items()}
            for hub, due in sorted(dues.items(), key=lambda each: each[1]):
                await asyncio.sleep((due - stage.clock.now()).total_seconds() - 5)
                assert len(stage.hubs[hub].issued) == 1
                await come(lambda hub=hub: len(stage.hubs[hub].issued) == 2, within=timedelta(minutes=2))  # type: ignore[misc]
            await asyncio.sleep((75 * DAY).total_seconds())
            assert ready(stage)()
            for hub in (B, C):
                leaf = parse_certificate((await stage.contents(hub))["tls.crt"])
                assert leaf.serial == stage.hubs[hub].issued[-1]
                assert leaf.not_after > stage.clock.now()
                assert len(stage.hubs[hub].issued) in range(4, 7)
        assert sessions(list(stage.hubs.values())) == 0

    played(play)


def test_a_certificate_that_expired_while_its_hub_was_away_comes_back_by_its_recovery_certificate() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
        await asyncio.sleep((40 * DAY).total_seconds())
        stage.hubs[B].away = True
        async with stage.running():
            await come(lambda: stage.standby.troubles.get(B))
            assert stage.state(B) is not HubState.LOST, "its recovery certificate is good"
            stage.hubs[B].away = False
            await come(ready(stage))
            assert "recover submit_request" in stage.hubs[B].calls
            assert stage.standby.counted[B, "HubLost"] == 0

    played(play)


def test_a_credential_that_is_not_renewed_is_told_before_it_ends() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            stage.hubs[B].lifetime = DAY
            await come(ready(stage))
            stage.hubs[B].approve = False
            await asyncio.sleep(21 * 3600)
            assert stage.standby.counted[B, "HubCredentialEndsSoon"] == 0
            await asyncio.sleep(2 * 3600)
            assert stage.standby.counted[B, "HubCredentialEndsSoon"] == 1
            assert any("hub-b ends at" in message for _, message in stage.told)

    played(play)


def test_a_hub_that_does_not_take_the_new_certificate_is_met_with_the_one_before() -> None:
    async def play(stage: ReserveStage) -> None:
        hub = stage.hubs[B]
        async with stage.running():
            await come(ready(stage))
            first = (await stage.contents(B))["tls.crt"]
            leaf = parse_certificate(first)
            hub.refuse_new = True
            due = rotate_at(leaf.serial, leaf.not_before, leaf.not_after) - stage.clock.now()
            await asyncio.sleep(due.total_seconds() + 60)
            assert 2 <= len(hub.issued) <= 5, "it tries again, and not in a circle"
            assert stage.standby.counted[B, "HubLost"] == 0, "the one before is good"
            hub.refuse_new = False
            await asyncio.sleep(1200)
            renewed = (await stage.contents(B))["tls.crt"]
            assert renewed != first
            assert parse_certificate(renewed).serial == hub.issued[-1]
            assert stage.state(B) is HubState.READY
            assert "bootstrap" not in " ".join(hub.requests[each].requester for each in list(hub.requests)[1:])

    played(play)


def test_a_credential_that_the_hub_has_forgotten_is_replaced_by_registering_again() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
            stage.attend(replace(stage.post, listing=Listing(tuple(stage.bootstrap(hub, life=DAY) for hub in (A, B, C)))))
            stage.hubs[B].revoked.update(stage.hubs[B].issued)
            await come(lambda: len(stage.hubs[B].issued) == 2, within=10 * HOUR)
            await come(ready(stage))
        assert len(stage.hubs[B].clusters) == 1

    played(play)


def test_a_credential_that_is_refused_for_good_is_told_once() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
            stage.hubs[B].revoked.update(stage.hubs[B].issued)
            await asyncio.sleep((2 * DAY).total_seconds())
            assert stage.state(B) is HubState.LOST
            assert stage.standby.counted[B, "HubLost"] == 1

    played(play)


def test_a_credential_whose_ca_goes_comes_back_by_its_recovery_certificate() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
            stage.hubs[B].outlived.update(stage.hubs[B].issued)
            await come(lambda: len(stage.hubs[B].issued) == 2, within=10 * HOUR)
            await come(ready(stage))
        assert "recover submit_request" in stage.hubs[B].calls

    played(play)


def test_a_hub_that_is_away_is_unreachable_asked_with_pauses_and_seen_when_it_is_back() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
            stage.hubs[B].away = True
            await come(lambda: stage.state(B) is HubState.UNREACHABLE, within=10 * HOUR)
            assert stage.state(C) is HubState.READY
            calls = len(stage.hubs[B].calls)
            await asyncio.sleep(3600)
            assert len(stage.hubs[B].calls) - calls < 3600 / 5, "fully jittered up to 30 s"
            stage.hubs[B].away = False
            await come(ready(stage), within=timedelta(seconds=31))
        assert len(stage.hubs[B].issued) == 1

    played(play)


def test_each_hub_has_its_own_clock() -> None:
    """One is 40 days ahead, the other 40 behind: neither throws the other's credential away, and nobody renews too early."""

    async def play(stage: ReserveStage) -> None:
        for hub, by in ((B, 40 * DAY), (C, -40 * DAY)):
            clock = OffsetClock(stage.clock)
            clock.learn(stage.clock.now() + by)
            stage.hubs[hub] = ReserveHub(clock, hub_id=hub)
            stage.hubs[hub].again_after = 6 * HOUR
        stage.listing = Listing(tuple(stage.bootstrap(hub) for hub in (A, B, C)))
        stage.attend(replace(stage.post, listing=stage.listing))
        async with stage.running():
            await come(ready(stage))
            await asyncio.sleep((20 * DAY).total_seconds())
            assert all(len(stage.hubs[hub].issued) == 1 for hub in (B, C))
            await asyncio.sleep((5 * DAY).total_seconds())
            assert all(len(stage.hubs[hub].issued) == 2 for hub in (B, C))

    played(play)


def test_the_slot_is_handed_over_and_back_without_a_second_writer() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
            before = await stage.contents(B)
            stage.attend(replace(stage.post, busy=B, owner=B, epoch=8))
            await come(lambda: stage.state(A) is HubState.READY)
            calls = len(stage.hubs[B].calls)
            await asyncio.sleep((26 * DAY).total_seconds())
            assert len(stage.hubs[B].calls) == calls, "whoever is busy with it renews it"
            assert await stage.contents(B) == before
            stage.attend(replace(stage.post, busy=A, owner=A, epoch=9))
            await come(ready(stage))
            assert stage.hubs[B].clusters[NAMES.cluster].owner == A
            assert len(stage.hubs[B].requests) == 2, "the one that it had, and the renewal that was due"

    played(play)


def test_the_owner_that_the_agent_is_about_to_leave_is_looked_at_and_told_nothing() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
            stage.attend(replace(stage.post, busy=B, owner=B, epoch=8))
            await come(lambda: stage.state(A) is HubState.READY)
            stage.attend(replace(stage.post, busy=C))
            await come(lambda: stage.state(B) is HubState.READY)
            assert stage.hubs[B].clusters[NAMES.cluster].owner == A

    played(play)


def test_a_hub_without_the_word_is_registered_renewed_and_seen_all_the_same() -> None:
    async def play(stage: ReserveStage) -> None:
        stage.hubs[B].plain, stage.hubs[B].lifetime = True, DAY
        async with stage.running():
            await come(ready(stage))
            assert stage.hubs[B].calls.count("stand_by") == 1
            await asyncio.sleep((21 * HOUR).total_seconds())
            assert len(stage.hubs[B].issued) == 2
            stage.hubs[B].away = True
            await come(lambda: stage.state(B) is HubState.UNREACHABLE, within=10 * HOUR)

    played(play)


def test_the_highest_epoch_that_a_hub_tells_is_known() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running() as standby:
            await come(ready(stage))
            assert standby.epoch == 7
            stage.hubs[B].clusters[NAMES.cluster].epoch = 99
            await come(lambda: standby.epoch == 99, within=10 * HOUR)

    played(play)


def test_a_hub_tells_of_its_next_ca_and_is_known_by_it() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
            own, further = (stage.hubs[each].authority.certificate for each in (B, C))
            stage.hubs[B].next_authority = further
            await asyncio.sleep(DAY.total_seconds())
            first = await stage.contents(B)
            assert fingerprints(stored_connection(first).address.ca) == fingerprints(own + further)
            assert stage.hubs[B].trusted[NAMES.cluster] == fingerprints(own + further), "and it says so"
            await asyncio.sleep(DAY.total_seconds())
            assert await stage.contents(B) == first

    played(play)


@pytest.mark.parametrize("whole", [True, False])
def test_the_slot_of_a_hub_that_has_left_the_list_is_deleted_when_the_whole_list_is_known(*, whole: bool) -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
            shorter = replace(stage.post, listing=Listing(stage.listing.hubs[:2], whole=whole))
            stage.attend(shorter)
            await asyncio.sleep(LEFT_AFTER.total_seconds() - 1)
            assert await stage.contents(C), "it may come back in a moment"
            await asyncio.sleep(2)
            assert bool(await stage.contents(C)) is not whole
            assert await stage.contents(B)
            assert C not in stage.standby.hubs

    played(play)


def test_a_slot_that_was_left_behind_is_deleted_and_secrets_of_others_are_not() -> None:
    async def play(stage: ReserveStage) -> None:
        await stage.secrets.write("hub-kubeconfig-secret-dddddddd", {"tls.crt": b"x"}, None)
        await stage.secrets.write("hub-kubeconfig-secret-of-somebody", {"tls.crt": b"x"}, None)
        async with stage.running():
            await asyncio.sleep(2 * LEFT_AFTER.total_seconds())
        assert not (await stage.secrets.read("hub-kubeconfig-secret-dddddddd")).contents
        assert (await stage.secrets.read("hub-kubeconfig-secret-of-somebody")).contents

    played(play)


def test_an_agent_with_one_hub_has_no_keeper() -> None:
    async def play(stage: ReserveStage) -> None:
        stage.post = replace(stage.post, listing=Listing(stage.listing.hubs[:1]))
        async with stage.running():
            await asyncio.sleep(DAY.total_seconds())
            assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("standby")]
        assert all(hub.calls == [] for hub in stage.hubs.values())

    played(play)


def test_a_defect_at_one_hub_costs_no_other() -> None:
    async def play(stage: ReserveStage) -> None:
        stage.hubs[B].refusal = ZeroDivisionError("a defect")
        async with stage.running():
            await come(ready(stage, C))
            assert stage.state(B) is HubState.REGISTERING
            stage.hubs[B].refusal = None
            await come(ready(stage))

    played(play)


def test_no_task_is_left_behind() -> None:
    async def play(stage: ReserveStage) -> None:
        async with stage.running():
            await come(ready(stage))
        assert asyncio.all_tasks() == {asyncio.current_task()}

    played(play)
