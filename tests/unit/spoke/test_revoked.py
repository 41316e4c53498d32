"""An agent whose credential is revoked, and how it differs from one that is denied, forgotten, or merely not taken."""

import asyncio
from datetime import timedelta
from pathlib import Path

from machinery.errors import ForbiddenError, Verdict
from spoke.domain.hubs import HubState
from spoke.ports import HubLostError, Loss
from spoke.progress import Progress
from tests.fakes.several import Several, played
from tests.fakes.stage import Stage, until

MESSAGE = "revoked, and this bootstrap credential is older: have a new one made"


def is_open(stage: Stage) -> bool:
    return bool(stage.hub.sessions) and not stage.hub.session.over


def revoke(stage: Stage) -> None:
    """As a hub does: the certificates, and nobody is let in with what is older."""
    stage.hub.verdict = Verdict.CERTIFICATE_REVOKED
    stage.hub.revoked.update(stage.hub.issued)
    stage.hub.barred = ForbiddenError(MESSAGE, causes=Verdict.CLUSTER_REVOKED.because(MESSAGE))
    stage.hub.session.end(HubLostError("revoked", Loss.REVOKED))


def state(progress: Progress) -> HubState | None:
    return next((hub.state for hub in progress.standing.hubs), None)


async def test_a_revoked_credential_is_never_shown_again_while_registering_fails(stage: Stage) -> None:
    async with stage.running() as agent:
        await until(lambda: is_open(stage))
        revoke(stage)
        await until(lambda: stage.hub.calls.count("ensure_cluster") >= 5)
        assert stage.hub.calls.count("session") == 1
        await until(lambda: state(agent.progress) is HubState.REVOKED)
        stage.clock.advance(timedelta(minutes=5))  # the last beat is no sign of life any more
        await until(lambda: "hubctl create bootstrap-kubeconfig" in agent.progress.ready().text)
        assert agent.progress.live().ok


async def test_a_new_bootstrap_kubeconfig_brings_a_revoked_agent_back(stage: Stage) -> None:
    async with stage.running() as agent:
        await until(lambda: is_open(stage))
        revoke(stage)
        await until(lambda: state(agent.progress) is HubState.REVOKED)
        stage.hub.barred = None
        stage.replace_bootstrap(stage.hub.bootstrap_kubeconfig())
        await until(lambda: is_open(stage) and len(stage.hub.issued) == 2)
        await until(lambda: state(agent.progress) is HubState.READY)


async def test_an_agent_that_starts_anew_is_told_once_and_then_knows(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_open(stage))
        revoke(stage)
        await until(lambda: stage.hub.calls.count("ensure_cluster") >= 2)
    before = stage.hub.calls.count("session")
    async with stage.running() as agent:
        await until(lambda: state(agent.progress) is HubState.REVOKED)
        tried = stage.hub.calls.count("ensure_cluster")
        await until(lambda: stage.hub.calls.count("ensure_cluster") >= tried + 3)
    assert stage.hub.calls.count("session") == before + 1


async def test_a_denied_agent_keeps_its_credential_asks_again_and_says_so(stage: Stage) -> None:
    async with stage.running() as agent:
        await until(lambda: is_open(stage))
        stage.hub.session.end(HubLostError("denied: hubctl accept", Loss.REFUSED))
        await until(lambda: len(stage.hub.sessions) == 2)
        assert stage.hub.calls.count("ensure_cluster") == 1
        await until(lambda: state(agent.progress) is HubState.READY)
    assert len(stage.hub.issued) == 1


def test_among_several_hubs_a_revoked_agent_goes_to_the_next_and_the_reserve_knows(tmp_path: Path) -> None:
    async def play(world: Several) -> None:
        async with world.running() as agent:
            await world.ready()
            hub = world["a"]
            hub.verdict = Verdict.CERTIFICATE_REVOKED
            hub.revoked.update(hub.issued)
            hub.barred = ForbiddenError(MESSAGE, causes=Verdict.CLUSTER_REVOKED.because(MESSAGE))
            hub.session.end(HubLostError("revoked", Loss.REVOKED))
            assert await world.arrived("b") < 1
            await world.until(lambda: state(agent.progress) is HubState.REVOKED)
            tried = hub.calls.count("session")
            await asyncio.sleep(7200)
            assert state(agent.progress) is HubState.REVOKED
            assert hub.calls.count("session") == tried
            assert world.at() == "b"

    played(tmp_path, play)
