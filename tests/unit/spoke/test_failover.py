"""An agent between several hubs: which one has its session, how soon, and what everybody is told."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random

import pytest

from machinery.errors import UnavailableError
from machinery.identity import HubId
from spoke.domain.hubs import HubState, Policy, Unaccepted
from spoke.options import Options
from spoke.ports import HubLostError, Loss, SecretSnapshot
from tests.fakes.credentials import MemorySecrets
from tests.fakes.several import AGENT, CLUSTER, OWNER, Several, played, with_hubs

NAMED = Options(cluster_name=CLUSTER, agent_id=AGENT)


def test_an_agent_registers_everywhere_and_reports_to_the_first(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running() as agent:
            await world.ready()
            owner, epoch = await world.owner()
            assert (owner, world["a"].session.epoch) == ("a", epoch)
            assert world["b"].sessions == []
            assert world["b"].clusters[CLUSTER].owner == world["a"].hub_id
            standing = agent.progress.standing
            assert [hub.state for hub in standing.hubs] == [HubState.READY, HubState.READY]
            assert (standing.owner, standing.epoch) == (world["a"].hub_id, epoch)

    played(tmp_path, play)


def test_a_killed_hub_is_left_for_the_next_within_the_figure(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running() as agent:
            await world.ready()
            _, before = await world.owner()
            world.kill("a")
            assert await world.arrived("b") < 3
            owner, epoch = await world.owner()
            assert owner == "b"
            assert epoch > before
            assert world["b"].session.epoch == epoch
            assert world.directory.contents["hub-id"] == world["b"].hub_id.encode()
            assert "HubFailedOver" in world.told.reasons
            decision = agent.progress.standing.decision
            assert decision is not None
            assert "connection re" in decision.message

    played(tmp_path, play)


def test_a_hub_that_is_back_at_once_is_not_left(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            before = await world.owner()
            for session in world["a"].open_sessions:
                session.end(HubLostError("GOAWAY"))
            await world.arrived("a")
            await world.until(lambda: len(world["a"].sessions) == 2)
            assert world["b"].sessions == []
            assert await world.owner() == before

    played(tmp_path, play)


def test_the_agent_stays_where_it_went_when_the_hub_that_it_left_is_back(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            world.kill("a")
            await world.arrived("b")
            world.revive("a")
            await world.until(lambda: world["a"].clusters[CLUSTER].owner == world["b"].hub_id)
            _, epoch = await world.owner()
            assert world["a"].clusters[CLUSTER].epoch == epoch
            await asyncio.sleep(3600)
            assert world.at() == "b"
            assert len(world["a"].sessions) == 1

    played(tmp_path, play)


def test_it_goes_back_to_a_preferred_hub_that_has_been_ready_for_the_time_that_is_set(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            world.kill("a")
            await world.arrived("b")
            await asyncio.sleep(200)
            world.revive("a")
            await world.until(lambda: world["a"].clusters[CLUSTER].owner == world["b"].hub_id)
            assert 240 < await world.arrived("a", 1000) < 320
            assert "HubFailedBack" in world.told.reasons
            left = world["b"].session
            _, epoch = await world.owner()
            assert left.farewells == [(world["a"].hub_id, epoch)]

    back = Policy(fail_back_after=timedelta(minutes=5))
    played(tmp_path, play, options=with_hubs(NAMED, policy=back))


def test_with_every_bootstrap_credential_expired_a_killed_owner_is_left_all_the_same(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            await asyncio.sleep(7200)
            world.kill("a")
            assert await world.arrived("b") < 3

    played(tmp_path, play)


@pytest.mark.parametrize("loss", [Loss.REFUSED, Loss.FORGOTTEN, Loss.UNAUTHENTICATED])
def test_a_hub_that_says_no_is_left_at_once(tmp_path: Path, loss: Loss) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            if loss is Loss.UNAUTHENTICATED:
                world["a"].revoked.update(world["a"].issued)
            elif loss is Loss.FORGOTTEN:
                del world["a"].clusters[CLUSTER]
            world["a"].session.end(HubLostError("no", loss))
            assert await world.arrived("b") < 1

    played(tmp_path, play)


def test_a_withdrawn_acceptance_is_left_with_last_words(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            left = world["a"].session
            world["a"].set_accepted(CLUSTER, accepted=False)
            assert await world.arrived("b") < 1
            await world.until(lambda: left.over)
            assert left.farewells == [(world["b"].hub_id, world["b"].session.epoch)]

    played(tmp_path, play)


def test_a_withdrawn_acceptance_is_waited_for_if_so_wished(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            world["a"].set_accepted(CLUSTER, accepted=False)
            await asyncio.sleep(3600)
            assert world["b"].sessions == []

    played(tmp_path, play, options=with_hubs(NAMED, policy=Policy(unaccepted=Unaccepted.WAIT)))


def test_a_silent_hub_is_left_within_the_figure(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            world["a"].silent = True
            assert await world.arrived("b") < 20

    played(tmp_path, play)


def test_no_hub_left_means_trying_all_of_them_and_arriving_where_one_is_back(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            for name in world.hubs:
                world.kill(name)
            await asyncio.sleep(600)
            dialled = sum(hub.dialled for hub in world.hubs.values())
            await asyncio.sleep(600)
            assert sum(hub.dialled for hub in world.hubs.values()) - dialled < 150
            before = await world.owner()
            await asyncio.sleep(60)
            assert await world.owner() == before  # nobody is made the owner without hope
            world.revive("c")
            assert await world.arrived("c") < 130

    played(tmp_path, play, count=3)


def test_a_planned_move_opens_the_next_session_before_it_leaves_the_last(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            left = world["a"].session
            left.drain(world["b"].hub_id)
            await world.until(lambda: world["b"].sessions)
            assert not left.over or left.farewells
            await world.arrived("b")
            assert left.farewells == [(world["b"].hub_id, world["b"].session.epoch)]
            assert world["a"].clusters[CLUSTER].owner == world["b"].hub_id
            assert "HubMoved" in world.told.reasons
            await asyncio.sleep(600)
            assert world.at() == "b"

    played(tmp_path, play)


def test_a_move_to_a_hub_that_is_not_ready_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            for target in (HubId("unknown"), world["b"].hub_id):
                world["b"].set_accepted(CLUSTER, accepted=False)
                await asyncio.sleep(600)  # the reserve has heard of it
                world["a"].session.drain(target)
                await asyncio.sleep(1)
            assert world.at() == "a"
            assert world.told.reasons.count("HubMoveRefused") == 2
            world["a"].session.drain()  # and a later notice of another kind is heard
            await world.until(lambda: len(world["a"].sessions) == 2)

    played(tmp_path, play)


def test_a_move_that_fails_leaves_the_session_where_it_was_with_the_owner_put_back(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            _, before = await world.owner()
            world["b"].away = True
            world["a"].session.drain(world["b"].hub_id)
            await world.until(lambda: "HubMoveFailed" in world.told.reasons)
            owner, epoch = await world.owner()
            assert (owner, world.at()) == ("a", "a")
            assert epoch > before
            assert len(world["a"].sessions) == 1
            world["a"].session.end(HubLostError("gone"))  # the next session has the epoch that the secret has
            await world.until(lambda: len(world["a"].sessions) == 2)
            assert world["a"].session.epoch == epoch

    played(tmp_path, play)


class Stubborn(MemorySecrets):
    """Takes so many writes of the owner's secret, and no more until it is told to."""

    takes = 1_000

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        if name == OWNER:
            if not self.takes:
                raise UnavailableError("the API server is away")
            self.takes -= 1
        return await super().write(name, contents, version)


@pytest.mark.parametrize("ill", ["away", "silent"])
@pytest.mark.parametrize("lost", [False, True])
def test_an_owner_that_cannot_be_put_back_after_a_failed_move_is_put_back_as_soon_as_it_can(
    tmp_path: Path, ill: str, *, lost: bool
) -> None:
    async def play(world: Several) -> None:
        secrets = world.secrets
        assert isinstance(secrets, Stubborn)
        async with world.running():
            await world.ready()
            setattr(world["b"], ill, True)
            secrets.takes = 1
            world["a"].session.drain(world["b"].hub_id)
            await world.until(lambda: "HubMoveFailed" in world.told.reasons)
            if lost:
                world["a"].session.end(HubLostError("gone"))
            await asyncio.sleep(5)
            given, epoch = await world.owner()
            assert given == "b"
            assert len(world["a"].sessions) == 1, "no hub is dialled while the secret names another"
            secrets.takes = 1_000
            setattr(world["b"], ill, False)
            await asyncio.sleep(120)
            owner, after = await world.owner()
            assert owner == world.at()
            if not lost:
                assert (owner, len(world["a"].sessions)) == ("a", 1)
                assert after > epoch
            assert "HubOvertaken" not in world.told.reasons

    played(tmp_path, play, secrets=Stubborn())


def test_an_epoch_that_was_put_back_is_healed_with_an_event(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            world["a"].clusters[CLUSTER].epoch += 1000
            known = world["a"].clusters[CLUSTER].epoch
            world["a"].session.end(HubLostError("gone"))
            await world.until(lambda: len(world["a"].sessions) == 2)
            assert world.at() in ("a", "")
            _, epoch = await world.owner()
            assert epoch > known
            assert world["a"].session.epoch == epoch
            assert "HubEpochRaised" in world.told.reasons

    played(tmp_path, play)


def test_an_owner_secret_restored_from_before_a_failover_ends_in_one_session_above_everything(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            old = await world.secrets.read(OWNER)
            world.kill("a")
            await world.arrived("b")
            world.revive("a")
            await world.until(lambda: world["a"].clusters[CLUSTER].owner == world["b"].hub_id)
            _, above = await world.owner()
        present = await world.secrets.read(OWNER)
        await world.secrets.write(OWNER, old.contents, present.version)
        async with world.running():
            await world.until(world.at)
            name = world.at()
            owner, epoch = await world.owner()
            assert owner == name
            assert epoch > above
            await world.until(lambda: all(hub.clusters[CLUSTER].epoch == epoch for hub in world.hubs.values()))

    played(tmp_path, play)


def test_the_hub_hears_of_the_list_with_the_session_and_whenever_it_changes(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        world["b"].accept = False
        async with world.running():
            await world.until(lambda: world.at() == "a" and "stand_by" in world["b"].calls)
            known = world["a"].clusters[CLUSTER]
            await world.until(lambda: [hub.state for hub in known.hubs] == [HubState.READY, HubState.NOT_ACCEPTED])
            assert [hub.name for hub in known.hubs] == ["a", "b"]
            world["b"].set_accepted(CLUSTER, accepted=True)
            await world.until(lambda: [hub.state for hub in known.hubs] == [HubState.READY, HubState.READY], 600)

    played(tmp_path, play)


def test_an_agent_with_one_hub_asks_no_more_of_it_than_before(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.arrived("a")
            calls = list(world["a"].calls)
            await asyncio.sleep(7200)
            assert world["a"].calls == calls == ["info", "ensure_cluster", "submit_request", "follow_request", "session"]

    played(tmp_path, play, count=1)


def test_a_new_agent_prefers_the_first_hub_even_if_the_second_answers_sooner(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        world["a"].approve = False
        async with world.running():
            await world.until(lambda: world["a"].requests)
            await asyncio.sleep(5)
            world["a"].approve_request(next(iter(world["a"].requests)))
            await world.arrived("a")
            assert world["b"].sessions == []

    played(tmp_path, play)


def test_a_new_agent_does_not_wait_for_the_first_hub_for_ever(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        world["a"].approve = False
        async with world.running():
            assert 5 < await world.arrived("b") < 15
            world["a"].approve_request(next(iter(world["a"].requests)))
            await world.until(lambda: "stand_by" in world["a"].calls)
            assert world["a"].sessions == []

    played(tmp_path, play)


def test_a_new_agent_whose_first_hub_is_away_begins_at_the_next(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        world["a"].away = True
        async with world.running():
            assert await world.arrived("b") < 15

    played(tmp_path, play)


def test_without_standby_registration_the_next_hub_is_gone_to_when_the_owner_is_given_up(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.arrived("a")
            await asyncio.sleep(60)
            assert world["b"].calls == []
            world.kill("a")
            assert 600 < await world.arrived("b", 1000) < 700

    played(tmp_path, play, options=replace(NAMED, standby_registration=False))


def test_a_flapping_hub_is_left(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            for _ in range(20):
                await asyncio.sleep(2)
                if world.at() == "b":
                    return
                for session in world["a"].open_sessions:
                    session.end(HubLostError("reset"))
            raise AssertionError

    played(tmp_path, play)


def test_a_hundred_agents_do_not_come_all_at_once(tmp_path: Path) -> None:
    arrivals = []
    for seed in range(30):

        async def play(world: Several) -> None:
            async with world.running():
                await world.ready()
                world.kill("a")
                arrivals.append(await world.arrived("b"))

        folder = tmp_path / str(seed)
        folder.mkdir()
        played(folder, play, random=Random(seed))
    assert max(arrivals) < 3
    slots = Counter(int(each / 0.1) for each in arrivals)
    assert max(slots.values()) < len(arrivals) / 3


def test_two_copies_on_one_secret_leave_one_owner_and_do_not_leap_over_each_other_for_ever(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            async with world.running():
                world.kill("a")
                await world.until(lambda: world["b"].open_sessions)
                await asyncio.sleep(3600)
                first = await world.owner()
                written = world.told.reasons.count("HubEpochRaised")
                await asyncio.sleep(3600)
                assert await world.owner() == first
                assert world.told.reasons.count("HubEpochRaised") == written
                assert len(world["b"].open_sessions) <= 1
                assert len(world["b"].sessions) < 500

    played(tmp_path, play)


def test_a_copy_that_stood_still_while_another_went_on_follows_it(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running():
            await world.ready()
            contents = (await world.secrets.read(OWNER)).contents
            snapshot = await world.secrets.read(OWNER)
            epoch = int(contents["epoch"]) + 5
            slot = (await world.secrets.read(f"{OWNER}-{world['b'].hub_id[:8]}")).contents
            ahead = {**slot, "hub-id": world["b"].hub_id.encode(), "epoch": str(epoch).encode()}
            await world.secrets.write(OWNER, ahead, snapshot.version)  # the other copy has moved
            world["a"].heard(CLUSTER, epoch, world["b"].hub_id)  # and the hub knows
            await world.arrived("b")
            assert await world.owner() == ("b", epoch)
            assert world["b"].session.epoch == epoch
            assert "HubEpochRaised" not in world.told.reasons

    played(tmp_path, play)
