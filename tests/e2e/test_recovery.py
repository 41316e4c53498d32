"""Real processes: an agent that was off for longer than its certificate lived, and nobody at the keyboard."""

from datetime import UTC, datetime

from machinery.pki import parse_certificate
from tests.e2e.processes import Bench, Program, recorded, until

LIFETIME = "--agent-lifetime=5s"
SHORT = ("--auto-approve=*", "--default-lease-duration=2s")


async def expired(bench: Bench) -> Program:
    """A spoke that was killed, whose certificate has expired since, and whose bootstrap kubeconfig is gone."""
    spoke = await bench.spoke("c1")
    await bench.available("c1")
    await spoke.kill()
    held = parse_certificate((bench.folder / "c1.credentials" / "tls.crt").read_bytes())

    async def over() -> bool:
        return datetime.now(UTC) > held.not_after

    await until(over, what="the certificate has expired")
    (bench.folder / "c1.bootstrap").unlink()
    return spoke


def issued(bench: Bench) -> int:
    return recorded(bench.data / "hub.db", "agent")["c1"]


async def back(bench: Bench, spoke: Program, before: int) -> None:
    """The agent has one certificate more, and a session with it: the second of its life."""

    async def renewed() -> bool:
        return issued(bench) == before + 1 and spoke.output.count("session.opened") > 1

    await until(renewed, what="the agent is back", within=40)
    await bench.available("c1")


async def test_an_agent_that_was_off_for_longer_than_its_certificate_comes_back_by_itself(bench: Bench) -> None:
    hub = await bench.hub(*SHORT, LIFETIME)
    spoke = await expired(bench)
    before = issued(bench)
    assert await hub.stop() == 0
    await bench.hub("--default-lease-duration=2s")  # certificates live again, and no rule approves anything
    await spoke.start()
    await back(bench, spoke, before)
    approved = [entry for request in await bench.requests() for entry in request["status"]["conditions"]]
    assert [entry["reason"] for entry in approved].count("RecoveredByItsKey") == 1


async def test_a_hub_that_wants_to_be_asked_is_asked(bench: Bench) -> None:
    hub = await bench.hub(*SHORT, LIFETIME)
    spoke = await expired(bench)
    assert await hub.stop() == 0
    await bench.hub("--default-lease-duration=2s", "--recovery=manual")
    await spoke.start()

    async def waits() -> str:
        pending = [request for request in await bench.requests() if not request["status"].get("conditions")]
        return pending[0]["metadata"]["name"] if pending else ""

    name = await until(waits, what="the request of the agent waits")
    await spoke.kill()
    await spoke.start()
    before = issued(bench)
    await bench.hubctl("certificate", "approve", name)
    await back(bench, spoke, before)


async def test_a_denied_agent_does_not_come_back_and_is_told_why(bench: Bench) -> None:
    hub = await bench.hub(*SHORT, LIFETIME)
    spoke = await expired(bench)
    await bench.hubctl("deny", "c1")
    assert await hub.stop() == 0
    await bench.hub("--default-lease-duration=2s")
    before = issued(bench)
    await spoke.start()

    async def told() -> bool:
        return "the recovery certificate does not bring this agent back" in spoke.output and "hubctl accept c1" in spoke.output

    await until(told, what="the agent says why")
    assert spoke.running
    await bench.hubctl("accept", "c1")
    await back(bench, spoke, before)
