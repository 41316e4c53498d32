"""An owner's secret that was put back from an older day, among hubs that have seen a later one."""

from pathlib import Path

from tests.fakes.credentials import MemorySecrets
from tests.fakes.several import CLUSTER, OWNER, Several, played


def test_a_secret_put_back_that_names_a_hub_which_missed_the_change_goes_above_what_the_reserve_knows(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        assert isinstance(world.secrets, MemorySecrets)
        async with world.running():
            await world.ready()
            old = await world.secrets.read(OWNER)
            world.kill("a")
            await world.arrived("b")
            _, newer = await world.owner()
        world.revive("a")  # which has heard of nothing
        present = await world.secrets.read(OWNER)
        await world.secrets.write(OWNER, old.contents, present.version)
        async with world.running():
            await world.arrived("a")
            await world.until(lambda: world["a"].session.epoch > newer and world["a"].session.beats)
            await world.until(lambda: world["b"].clusters[CLUSTER].owner == world["a"].hub_id)
            owner, epoch = await world.owner()
            assert owner == "a"
            assert epoch == world["a"].session.epoch == world["b"].clusters[CLUSTER].epoch
            assert "HubEpochRaised" in world.told.reasons

    played(tmp_path, play)
