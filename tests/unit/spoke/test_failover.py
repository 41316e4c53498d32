"""An agent between several hubs: which one has its session, how soon, and the reports."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest

from machinery.errors import DeadlineError, UnavailableError
from machinery.identity import HubId
from machinery.meta.conditions import CERTIFICATE_ROTATED
from spoke.domain.hubs import HubSelectionPolicy, HubState, Unaccepted
from spoke.domain.next_step import SessionLoss
from spoke.options import AgentOptions
from spoke.ports.cluster import SecretSnapshot
from spoke.ports.hub import HubLostError, SessionEpochError
from spoke.session.runner import SessionRun
from tests.checks import present
from tests.fakes.credentials import MemorySecrets
from tests.fakes.several import AGENT, CLUSTER, OWNER, Several, with_hubs

NAMED = AgentOptions(cluster_name=CLUSTER, agent_id=AGENT)
MODERATE = 5 * 2 * 20  # dials in twenty minutes: every hub five times a minute, sessions and standing by together


async def test_agent_registers_everywhere_reports_to_the_first_and_leaves_it_when_it_is_killed(world: Several) -> None:
    async with world.running() as agent:
        await world.ready()
        owner, before = await world.owner()
        assert (owner, world["a"].session.epoch, world["b"].sessions) == ("a", before, [])
        assert world["b"].clusters[CLUSTER].owner == world["a"].hub_id
        current = agent.progress.hubs_status
        assert [hub.state for hub in current.hubs] == [HubState.READY, HubState.READY]
        assert (current.owner, current.epoch) == (world["a"].hub_id, before)
        for session in world["a"].open_sessions:
            session.end(HubLostError("GOAWAY"))
        await world.until(lambda: len(world["a"].sessions) == 2 and world.at() == "a")
        assert world["b"].sessions == [], "a hub that is back at once is not left"
        assert await world.owner() == ("a", before)
        await asyncio.sleep(7200)  # every bootstrap credential has expired
        world.kill("a")
        assert await world.arrived("b") < 3
        owner, epoch = await world.owner()
        assert epoch > before
        assert (owner, world["b"].session.epoch) == ("b", epoch)
        assert world.directory.contents["hub-id"] == world["b"].hub_id.encode()
        assert "HubFailedOver" in world.recorded.reasons
        assert "connection re" in present(agent.progress.hubs_status.decision).message
        world.revive("a")
        await world.until(lambda: world["a"].clusters[CLUSTER].owner == world["b"].hub_id)
        assert world["a"].clusters[CLUSTER].epoch == epoch
        await asyncio.sleep(3600)
        assert world.at() == "b", "it stays where it went"
        assert len(world["a"].sessions) == 2


async def test_failed_renewal_at_one_hub_is_not_reported_to_the_next(world: Several) -> None:
    def renewals(name: str) -> set[str]:
        reports = [report for session in world[name].sessions for report in session.reports]
        return {each.status for report in reports for each in report.conditions if each.type == CERTIFICATE_ROTATED}

    world["a"].lifetime = timedelta(hours=2)
    async with world.running():
        await world.ready()
        world["a"].faults["submit_request"] = UnavailableError("this replica lacks the key of the issuing CA")
        await asyncio.sleep(1.8 * 3600)
        assert (world.at(), renewals("a")) == ("a", {"False"})
        world.kill("a")
        await world.arrived("b")
        await asyncio.sleep(600)
        assert renewals("b") == {"True"}


async def test_it_goes_back_to_a_preferred_hub_that_has_been_ready_for_the_time_that_is_set(world: Several) -> None:
    world.options = with_hubs(NAMED, policy=HubSelectionPolicy(fail_back_after=timedelta(minutes=5)))
    async with world.running():
        await world.ready()
        world.kill("a")
        await world.arrived("b")
        await asyncio.sleep(200)
        world.revive("a")
        await world.until(lambda: world["a"].clusters[CLUSTER].owner == world["b"].hub_id)
        assert 240 < await world.arrived("a", 1000) < 320
        assert "HubFailedBack" in world.recorded.reasons
        left = world["b"].session
        _, epoch = await world.owner()
        assert left.farewells == [(world["a"].hub_id, epoch)]


@pytest.mark.parametrize("loss", [SessionLoss.REFUSED, SessionLoss.FORGOTTEN, SessionLoss.UNAUTHENTICATED, SessionLoss.SILENT])
async def test_hub_that_refuses_or_is_silent_is_left_in_time(world: Several, loss: SessionLoss) -> None:
    async with world.running():
        await world.ready()
        if loss is SessionLoss.UNAUTHENTICATED:
            world["a"].revoked.update(world["a"].issued)
        elif loss is SessionLoss.FORGOTTEN:
            del world["a"].clusters[CLUSTER]
        world["a"].silent = loss is SessionLoss.SILENT
        if loss is not SessionLoss.SILENT:
            world["a"].session.end(HubLostError("no", loss))
        assert await world.arrived("b") < (20 if loss is SessionLoss.SILENT else 1)


async def test_hub_is_left_with_last_words_for_a_planned_move_and_when_it_withdraws_its_acceptance(world: Several) -> None:
    async with world.running():
        await world.ready()
        left = world["a"].session
        left.drain(world["b"].hub_id)
        await world.until(lambda: world["b"].sessions)
        assert not left.over or left.farewells, "the next session opens before the last is left"
        await world.arrived("b")
        assert left.farewells == [(world["b"].hub_id, world["b"].session.epoch)]
        assert world["a"].clusters[CLUSTER].owner == world["b"].hub_id
        assert "HubMoved" in world.recorded.reasons
        await asyncio.sleep(600)
        assert world.at() == "b"
        left = world["b"].session
        world["b"].set_accepted(CLUSTER, accepted=False)
        assert await world.arrived("a") < 1
        await world.until(lambda: left.over)
        assert left.farewells == [(world["a"].hub_id, world["a"].session.epoch)]


async def test_agent_that_stops_while_a_move_ends_leaves_no_session_open(
    world: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step in progress at the old hub may take long to end."""
    ended = list[float]()

    async def slow(_run: SessionRun) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(60)
            ended.append(world.clock.monotonic())

    work = SessionRun._work
    monkeypatch.setattr(SessionRun, "_work", lambda run: [*work(run), ("slow", slow(run))])
    async with world.running():
        await world.ready()
        world["a"].session.drain(world["b"].hub_id)
        await world.until(lambda: world["b"].sessions and world["b"].session.beats)
        assert not ended
    assert ended, "the agent waits for it"
    assert world["b"].open_sessions == []


async def test_agent_that_stops_during_its_farewell_leaves_no_session_open(
    world: Several, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running():
        await world.ready()
        left, begun = world["a"].session, asyncio.Event()

        async def unanswered(_hub_id: HubId, _epoch: int) -> None:
            begun.set()
            await asyncio.Event().wait()

        monkeypatch.setattr(left, "farewell", unanswered)
        left.drain(world["b"].hub_id)
        await begun.wait()
    assert world["b"].open_sessions == []


async def test_a_withdrawn_acceptance_is_waited_for_if_so_wished(world: Several) -> None:
    world.options = with_hubs(NAMED, policy=HubSelectionPolicy(unaccepted=Unaccepted.WAIT))
    async with world.running():
        await world.ready()
        world["a"].set_accepted(CLUSTER, accepted=False)
        await asyncio.sleep(3600)
        assert world["b"].sessions == []


@pytest.mark.parametrize("world", [{"count": 3}], indirect=True)
async def test_no_hub_left_means_trying_all_of_them_and_arriving_where_one_is_back(world: Several) -> None:
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


async def test_move_that_is_refused_or_fails_leaves_the_session_and_the_owner_where_they_were(world: Several) -> None:
    async with world.running():
        await world.ready()
        _, before = await world.owner()
        world["b"].away = True
        world["a"].session.drain(world["b"].hub_id)
        await world.until(lambda: "HubMoveFailed" in world.recorded.reasons)
        owner, epoch = await world.owner()
        assert (owner, world.at()) == ("a", "a")
        assert epoch > before
        assert len(world["a"].sessions) == 1
        world["a"].session.end(HubLostError("gone"))  # the next session has the epoch that the secret has
        await world.until(lambda: len(world["a"].sessions) == 2 and world.at() == "a")
        assert world["a"].session.epoch == epoch
        world["b"].away = False
        world["b"].set_accepted(CLUSTER, accepted=False)
        for target in (HubId("unknown"), world["b"].hub_id):
            await asyncio.sleep(600)  # the reserve has heard of it
            world["a"].session.drain(target)
            await asyncio.sleep(1)
        assert (world.at(), world.recorded.reasons.count("HubMoveRefused")) == ("a", 2)
        world["a"].session.drain()  # and a later notice of another kind is heard
        await world.until(lambda: len(world["a"].sessions) == 3)


class Stubborn(MemorySecrets):
    """Takes so many writes of the owner's secret, and no more until a test allows them."""

    takes = 1_000
    answers = True  # False: the next write is done, but not answered

    async def write(self, name: str, contents: Mapping[str, bytes], version: str | None) -> SecretSnapshot:
        if name == OWNER:
            if not self.takes:
                raise UnavailableError("the API server is away")
            self.takes -= 1
        written = await super().write(name, contents, version)
        if name == OWNER and not self.answers:
            self.answers = True
            raise DeadlineError("no answer in time")
        return written


async def test_session_and_secret_agree_after_a_move_whose_write_was_not_answered(world: Several) -> None:
    world.secrets = secrets = Stubborn()
    async with world.running():
        await world.ready()
        secrets.answers = False
        world["a"].session.drain(world["b"].hub_id)
        await world.until(lambda: "HubMoveFailed" in world.recorded.reasons)
        await asyncio.sleep(120)
        assert (await world.owner())[0] == world.at()


async def test_owner_with_an_unreadable_bootstrap_kubeconfig_is_kept_at_a_restart_until_it_is_lost(world: Several) -> None:
    async with world.running():
        await world.ready()
    world.file("a").write_bytes(b"nonsense: [")
    async with world.running():
        await world.arrived("a")
        world.file("b").touch()  # the list is read again
        await asyncio.sleep(60)
        assert (len(world["a"].sessions), world["b"].sessions) == (2, [])
        world.kill("a")
        await world.arrived("b")


async def test_owner_without_bootstrap_kubeconfig_and_credential_is_left_at_the_start(world: Several) -> None:
    await world.secrets.write(OWNER, {"hub-id": world["a"].hub_id.encode()}, None)
    world.file("a").write_bytes(b"nonsense: [")
    async with world.running():
        await world.arrived("b")


@pytest.mark.parametrize("ill", ["away", "silent"])
@pytest.mark.parametrize("lost", [False, True])
async def test_an_owner_is_put_back_after_a_failed_move_as_soon_as_it_can(world: Several, ill: str, *, lost: bool) -> None:
    world.secrets = secrets = Stubborn()
    async with world.running():
        await world.ready()
        setattr(world["b"], ill, True)
        secrets.takes = 1
        world["a"].session.drain(world["b"].hub_id)
        await world.until(lambda: "HubMoveFailed" in world.recorded.reasons)
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
            assert world.stands_by("b", "a"), "it must not count as the owner for ever"
        assert "HubOvertaken" not in world.recorded.reasons


async def test_hub_learns_the_list_of_hubs_and_an_epoch_behind_the_hubs_is_raised_with_an_event(world: Several) -> None:
    world["b"].accept = False
    async with world.running():
        await world.until(lambda: world.at() == "a" and "stand_by" in world["b"].calls)
        known = world["a"].clusters[CLUSTER]
        await world.until(lambda: [hub.state for hub in known.hubs] == [HubState.READY, HubState.NOT_ACCEPTED])
        assert [hub.name for hub in known.hubs] == ["a", "b"]
        world["b"].set_accepted(CLUSTER, accepted=True)
        await world.until(lambda: [hub.state for hub in known.hubs] == [HubState.READY, HubState.READY], 600)
        known.epoch += 1000
        before = known.epoch
        world["a"].session.end(HubLostError("gone"))
        await world.until(lambda: len(world["a"].sessions) == 2)
        assert world.at() in ("a", "")
        _, epoch = await world.owner()
        assert epoch > before
        assert world["a"].session.epoch == epoch
        assert "HubEpochRaised" in world.recorded.reasons


@pytest.mark.parametrize("world", [{"count": 1}], indirect=True)
async def test_an_agent_with_one_hub_asks_no_more_of_it_than_before(world: Several) -> None:
    async with world.running():
        await world.arrived("a")
        calls = list(world["a"].calls)
        await asyncio.sleep(7200)
        assert world["a"].calls == calls == ["info", "ensure_cluster", "submit_request", "follow_request", "session"]


@pytest.mark.parametrize("first", ["approves late", "approves too late", "is away"])
async def test_new_agent_waits_some_seconds_for_the_first_hub(world: Several, first: str) -> None:
    world["a"].approve, world["a"].away = False, first == "is away"
    async with world.running():
        if first == "is away":
            assert await world.arrived("b") < 15
            return
        await world.until(lambda: world["a"].requests)
        if first == "approves late":
            await asyncio.sleep(5)
            world["a"].approve_request(next(iter(world["a"].requests)))
            await world.arrived("a")
            assert world["b"].sessions == [], "although the second answers sooner"
            return
        assert 4 < await world.arrived("b") < 15
        world["a"].approve_request(next(iter(world["a"].requests)))
        await world.until(lambda: "stand_by" in world["a"].calls)
        assert world["a"].sessions == []


async def test_without_standby_registration_the_next_hub_is_gone_to_when_the_owner_is_given_up(world: Several) -> None:
    world.options = replace(NAMED, standby_registration=False)
    async with world.running():
        await world.arrived("a")
        await asyncio.sleep(60)
        assert world["b"].calls == []
        world.kill("a")
        assert 600 < await world.arrived("b", 1000) < 700


async def test_a_flapping_hub_is_left(world: Several) -> None:
    async with world.running():
        await world.ready()
        async with asyncio.timeout(40):
            while world.at() != "b":
                for session in world["a"].open_sessions:
                    session.end(HubLostError("reset"))
                await asyncio.sleep(2)


async def test_hubs_that_crash_in_turn_and_answer_again_are_each_arrived_at_in_seconds(world: Several) -> None:
    async with world.running():
        await world.ready()
        took = []
        for left, other in [("a", "b"), ("b", "a")] * 10:
            world.kill(left)
            took.append(await world.arrived(other))
            world.revive(left)
            await world.until(partial(world.stands_by, left, other))
            await asyncio.sleep(3)
        assert max(took) < 3, took


async def test_two_copies_on_one_secret_leave_one_owner_and_do_not_leap_over_each_other_for_ever(world: Several) -> None:
    async with world.running():
        await world.ready()
        async with world.running():
            world.kill("a")
            await world.until(lambda: world["b"].open_sessions)
            await asyncio.sleep(600)
            first, written = await world.owner(), world.recorded.reasons.count("HubEpochRaised")
            await asyncio.sleep(600)
            assert (await world.owner(), world.recorded.reasons.count("HubEpochRaised")) == (first, written)
            assert len(world["b"].open_sessions) <= 1
            assert len(world["b"].sessions) < 100


async def test_a_copy_that_stood_still_while_another_went_on_follows_it(world: Several) -> None:
    async with world.running():
        await world.ready()
        snapshot = await world.secrets.read(OWNER)
        epoch = int(snapshot.contents["epoch"]) + 5
        slot = (await world.secrets.read(f"{OWNER}-{world['b'].hub_id[:8]}")).contents
        ahead = {**slot, "hub-id": world["b"].hub_id.encode(), "epoch": str(epoch).encode()}
        await world.secrets.write(OWNER, ahead, snapshot.version)  # the other copy has moved
        world["a"].heard(CLUSTER, epoch, world["b"].hub_id)  # and the hub knows
        await world.arrived("b")
        assert (await world.owner(), world["b"].session.epoch) == (("b", epoch), epoch)
        assert "HubEpochRaised" not in world.recorded.reasons


@pytest.mark.parametrize("received", [True, False])
async def test_restored_owners_secret_ends_in_one_session_above_every_known_epoch(world: Several, *, received: bool) -> None:
    """Whether the hub that the old secret names has heard of the change since, or has missed it."""
    async with world.running():
        await world.ready()
        old = await world.secrets.read(OWNER)
        world.kill("a")
        await world.arrived("b")
        if received:
            world.revive("a")
            await world.until(lambda: world["a"].clusters[CLUSTER].owner == world["b"].hub_id)
        _, above = await world.owner()
    world.revive("a")
    await world.secrets.write(OWNER, old.contents, (await world.secrets.read(OWNER)).version)
    async with world.running():
        await world.until(lambda: (name := world.at()) and world[name].session.epoch > above and world[name].session.beats)
        name = world.at()
        assert received or name == "a"
        owner, epoch = await world.owner()
        assert (owner, world[name].session.epoch) == (name, epoch)
        await world.until(lambda: all(hub.clusters[CLUSTER].epoch == epoch for hub in world.hubs.values()))
        assert all(hub.clusters[CLUSTER].owner == world[name].hub_id for hub in world.hubs.values())
        assert received or "HubEpochRaised" in world.recorded.reasons


@pytest.mark.parametrize("silent", [False, True])
async def test_twenty_minutes_without_any_hub_restart_no_agent(world: Several, *, silent: bool) -> None:
    async with world.running() as agent:
        await world.arrived("a")
        for name, hub in world.hubs.items():
            if silent:
                hub.silent = True
            else:
                world.kill(name)
        dialled = sum(hub.dialled for hub in world.hubs.values())
        for _ in range(1200 // 10):
            await asyncio.sleep(10)  # as the chart's liveness probe
            assert agent.progress.live().ok, agent.progress.live().text
        assert not agent.progress.ready().ok
        assert sum(hub.dialled for hub in world.hubs.values()) - dialled <= MODERATE
        for hub in world.hubs.values():
            hub.away = hub.silent = False
        await world.until(lambda: agent.progress.ready().ok, 120)


@pytest.mark.parametrize("world", [{"count": 1}], indirect=True)
async def test_overloaded_hub_that_opens_sessions_but_acknowledges_nothing_is_dialled_ever_more_rarely(world: Several) -> None:
    async with world.running():
        await world.arrived("a")
        world["a"].silent, before = True, len(world["a"].sessions)
        await asyncio.sleep(600)
        assert 10 < len(world["a"].sessions) - before < 60, "each session lasts 5 s, and pauses grow to 30 s"


@pytest.mark.parametrize("world", [{"count": 3}], indirect=True)
async def test_hub_that_claims_an_incredible_epoch_locks_the_agent_out_of_no_other(world: Several) -> None:
    """Whether it is a standby hub of the agent or has its session; one that repeats a credible claim overtakes once an hour."""

    def bounded() -> bool:
        highest = (world.clock.now() + timedelta(hours=1)).timestamp() * 1000
        return all(session.epoch < highest + 10 for hub in world.hubs.values() for session in hub.sessions)

    async with world.running() as agent:
        await world.ready()
        world["b"].clusters[CLUSTER].epoch = 2**63 - 1
        await world.until(lambda: agent.progress.hubs_status.hubs[1].state is HubState.DENIED, 3600)
        assert any("claims the epoch 9223372036854775807" in message for _, message in world.recorded.events)
        world["a"].clusters[CLUSTER].epoch = 2**63 - 1
        for session in world["a"].open_sessions:
            session.end(SessionEpochError("no", 2**63 - 1))
        await world.arrived("c")
        assert world["c"].session.epoch == (await world.owner())[1]
        assert bounded()
        before, began = len(world["c"].sessions), world.clock.monotonic()
        for _ in range(10):
            for epoch, state in ((2**63 - 1, HubState.DENIED), (world["c"].session.epoch + 1, HubState.READY)):
                world["b"].clusters[CLUSTER].epoch = epoch
                await world.until(lambda: agent.progress.hubs_status.hubs[1].state is state)  # noqa: B023 - it is awaited
            await asyncio.sleep(1)
        assert len(world["c"].sessions) <= before + 1 + (world.clock.monotonic() - began) / 3600
        assert bounded()


@pytest.mark.parametrize("world", [{"count": 1}], indirect=True)
async def test_agent_that_was_denied_for_long_is_back_soon_after_it_is_accepted_again(world: Several) -> None:
    async with world.running():
        await world.arrived("a")
        calls, known = world["a"].calls, world["a"].clusters[CLUSTER]
        uid, known.cluster_uid = known.cluster_uid, "another"  # for which this hub refuses sessions, too
        world["a"].session.end(HubLostError("denied: hubctl accept edge", SessionLoss.REFUSED))
        await asyncio.sleep(1800)
        tried = calls.count("session")
        assert 1800 / 15 < tried < 1800 / 7
        await world.until(lambda: calls.count("session") > tried)
        known.cluster_uid = uid
        assert await world.arrived("a") <= 16


@pytest.mark.parametrize("world", [{"count": 1}], indirect=True)
async def test_hub_that_ends_each_session_by_a_higher_epoch_has_a_new_one_once_a_minute(world: Several) -> None:
    async with world.running():
        await world.arrived("a")
        hub, began = world["a"], world.clock.monotonic()
        for _ in range(20):
            session = hub.session
            hub.clusters[CLUSTER].epoch = session.epoch + 1
            session.end(SessionEpochError("a higher epoch is known", session.epoch + 1))
            await world.until(lambda: hub.session is not session, 3600)  # noqa: B023 - it is awaited
            await asyncio.sleep(1)
        took = world.clock.monotonic() - began
        assert took > 18 * 60, took
