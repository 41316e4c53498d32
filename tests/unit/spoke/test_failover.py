"""An agent between several hubs: which one has its session, how soon, and what everybody is told."""

from pathlib import Path

from spoke.domain.hubs import HubState
from tests.fakes.several import CLUSTER, Several, played


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
