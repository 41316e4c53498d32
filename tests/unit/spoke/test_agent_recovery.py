"""An agent that was off for longer than its certificate lived comes back without a person."""

from datetime import timedelta

import pytest

from machinery.errors import ForbiddenError, MusterError, UnavailableError
from machinery.pki import key_matches
from tests.fakes.stage import OWNER, Stage, nothing_pends, until
from tests.unit.spoke.test_agent import is_available

OFF = timedelta(days=40)


@pytest.fixture
async def expired(stage: Stage) -> Stage:
    """Agent and bootstrap credential have both expired while the agent was off."""
    async with stage.running():
        await until(lambda: is_available(stage))
    stage.clock.advance(OFF)
    stage.hub.calls.clear()
    return stage


def calls(stage: Stage) -> set[str]:
    return set(stage.hub.calls)


async def test_it_comes_back_with_its_recovery_certificate(expired: Stage) -> None:
    before = (await expired.secrets.read(OWNER)).contents
    async with expired.running():
        await until(lambda: is_available(expired))
    after = (await expired.secrets.read(OWNER)).contents
    assert calls(expired) == {"recover submit_request", "recover follow_request", "session"}
    assert after["tls.key"] != before["tls.key"]
    assert key_matches(after["tls.crt"], after["tls.key"])
    assert key_matches(after["recovery.crt"], after["tls.key"])
    assert (after["cluster-name"], after["agent-name"]) == (before["cluster-name"], before["agent-name"])
    assert await nothing_pends(expired.secrets)


async def test_it_needs_no_bootstrap_kubeconfig_for_that(expired: Stage) -> None:
    expired.file.unlink()
    async with expired.running():
        await until(lambda: is_available(expired))
    assert len(expired.hub.issued) == 2


async def test_where_a_person_has_to_agree_it_waits_and_a_restart_asks_for_nothing_else(expired: Stage) -> None:
    expired.hub.approve = False
    async with expired.running():
        await until(lambda: "recover follow_request" in calls(expired))
    async with expired.running():
        await until(lambda: expired.hub.calls.count("recover follow_request") > 1)
        (name,) = [name for name, request in expired.hub.requests.items() if request.state == "pending"]
        expired.hub.approve_request(name)
        await until(lambda: is_available(expired))


async def test_a_bootstrap_kubeconfig_that_is_handed_in_meanwhile_is_used(expired: Stage) -> None:
    expired.hub.approve = False
    async with expired.running():
        await until(lambda: "recover follow_request" in calls(expired))
        expired.hub.approve = True
        expired.replace_bootstrap(expired.hub.bootstrap_kubeconfig())
        await until(lambda: is_available(expired))
    assert "ensure_cluster" in calls(expired)


@pytest.mark.parametrize("refusal", [ForbiddenError("denied"), UnavailableError("TLS does not take it")])
async def test_what_recovery_cannot_do_a_bootstrap_credential_does(expired: Stage, refusal: MusterError) -> None:
    expired.hub.unrecoverable = refusal
    expired.file.write_bytes(expired.hub.bootstrap_kubeconfig())
    async with expired.running():
        await until(lambda: is_available(expired))
    assert "submit_request" in calls(expired)
    assert len(expired.hub.clusters) == 1


async def test_without_any_way_it_goes_on_trying_and_says_what_is_wrong(expired: Stage) -> None:
    expired.hub.unrecoverable = ForbiddenError("the cluster is denied")
    async with expired.running() as agent:
        await until(lambda: expired.hub.dialled > 5)
        await until(lambda: "the recovery certificate does not bring this agent back" in agent.progress.ready().text)
        expired.hub.unrecoverable = None
        await until(lambda: is_available(expired))


async def test_an_expired_recovery_certificate_is_not_tried(expired: Stage) -> None:
    expired.clock.advance(timedelta(days=60))
    expired.file.write_bytes(expired.hub.bootstrap_kubeconfig())
    async with expired.running():
        await until(lambda: is_available(expired))
    assert not any(call.startswith("recover") for call in expired.hub.calls)


@pytest.fixture
async def outlived(stage: Stage) -> Stage:
    """The CA of the agent's certificate is on its way out; nothing of it has ended but the bootstrap credential."""
    async with stage.running():
        await until(lambda: is_available(stage))
    stage.hub.outlived.update(stage.hub.issued)
    stage.clock.advance(timedelta(hours=2))
    stage.hub.calls.clear()
    return stage


async def test_an_agent_that_was_off_for_a_whole_change_of_ca_comes_back_with_its_recovery_certificate(outlived: Stage) -> None:
    async with outlived.running():
        await until(lambda: is_available(outlived))
    assert calls(outlived) == {"recover submit_request", "recover follow_request", "session"}
    assert len(outlived.hub.issued) == 2


async def test_one_that_is_denied_or_revoked_meanwhile_does_not_and_needs_a_bootstrap_credential(outlived: Stage) -> None:
    outlived.hub.unrecoverable = ForbiddenError("denied")
    async with outlived.running() as agent:
        await until(lambda: "new one with hubctl create bootstrap-kubeconfig" in agent.progress.ready().text)
        assert len(outlived.hub.issued) == 1
        outlived.replace_bootstrap(outlived.hub.bootstrap_kubeconfig())
        await until(lambda: is_available(outlived))
    assert "ensure_cluster" in calls(outlived)
