"""Several processes of one agent on one cluster: rolling updates and kills."""

import re

from spoke.network import SystemNetwork
from tests.e2e.processes import Bench, Program, until
from tests.e2e.test_spoke import says_again
from tests.trials import soaked, trials

ROLLS = trials(2, 50)


def opened(*spokes: Program) -> int:
    return sum(spoke.output.count("session.opened") for spoke in spokes)


async def stands_by(spoke: Program) -> None:
    network = SystemNetwork()

    async def asked() -> bool:
        told = re.findall(r'"address": "(127.0.0.1:\d+)", "event": "probes.listening"', spoke.output)
        code, text = await network.ask(told[-1], "/readyz") if told else (0, "")
        return code == 200 and "stands by" in text

    await until(asked, what=f"{spoke.name} stands by")


async def reported_by(bench: Bench, spoke: Program, before: int) -> None:
    await says_again(spoke, "session.opened", before + 1, within=15)
    await bench.available("c1")


@soaked(ROLLS)
async def test_a_rolling_update_hands_the_session_over_and_a_kill_is_followed_at_once(bench: Bench) -> None:
    hub = await bench.hub("--auto-approve=*")
    present = await bench.spoke("c1")
    await bench.available("c1")
    kubeconfig, bootstrap = bench.folder / "c1.kubeconfig", bench.folder / "c1.bootstrap"
    following = bench.program(
        *("following", "spoke", "run", "--cluster-name=c1", f"--kubeconfig={kubeconfig}"),
        f"--bootstrap-kubeconfig={bootstrap}",
    )
    await following.start()
    for number in range(ROLLS):
        await stands_by(following)
        total, before = opened(present, following), opened(following)
        if number % 2:
            await present.kill()
        else:
            assert await present.stop() == 0
        await reported_by(bench, following, before)
        assert opened(present, following) == total + 1
        await present.start()
        present, following = following, present
    assert "supersede" not in hub.output
    assert len(await bench.requests()) == 1
    for spoke in (present, following):
        assert not re.search("Traceback|agent.trouble", spoke.output), spoke.output[-2000:]
