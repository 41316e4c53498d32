"""The agent's credential: renewed, repaired, recovered, revoked, and proved where the hub demands it."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from machinery.client.rest import KubeClient
from machinery.errors import DenialCause, ForbiddenError, InvalidError, UnavailableError
from machinery.meta.conditions import CERTIFICATE_ROTATED
from machinery.pki import TokenKeys, generate_key, key_matches, parse_certificate
from machinery.runtime.clock import ManualClock
from spoke.cluster import ServiceAccountAttest
from spoke.domain.hubs import HubState
from spoke.domain.next_step import SessionEnd
from spoke.domain.schedule import rotate_at
from spoke.observability.progress import AgentProgress
from spoke.ports.cluster import Attest
from spoke.ports.hub import HubLostError
from tests.fakes.several import Several
from tests.fakes.stage import OWNER, SLOT, Stage, is_available, nothing_pends, until

MESSAGE = "revoked, and this bootstrap credential is older: have a new one made"


async def test_certificate_is_replaced_in_time_and_not_before_and_the_session_moves_to_it(stage: Stage) -> None:
    async with stage.at_work():
        stage.scheduler.wake("certificate-rotation")
        beats = len(stage.hub.session.beats)
        await until(lambda: len(stage.hub.session.beats) > beats + 3)
        assert len(stage.hub.issued) == 1
        first = stage.hub.session
        leaf = parse_certificate(first.identity.certificate)
        due = rotate_at(leaf.serial, leaf.not_before, leaf.not_after)
        assert stage.scheduler.instants["certificate-rotation"] == due
        stage.clock.advance(due - stage.clock.now())
        stage.scheduler.wake("certificate-rotation")
        await until(lambda: is_available(stage) and stage.hub.session is not first)
        second = stage.hub.session
        await until(lambda: any(e.type == CERTIFICATE_ROTATED for r in second.reports for e in r.conditions))
    assert second.identity.certificate != first.identity.certificate
    contents = (await stage.secrets.read(OWNER)).contents
    assert contents["tls.crt"] == second.identity.certificate
    assert key_matches(contents["tls.crt"], contents["tls.key"])
    assert await nothing_pends(stage.secrets)
    assert len(stage.hub.issued) == 2
    assert stage.hub.calls.count("session") == 2


async def test_renewal_that_waits_for_approval_is_resumed_by_the_next_start(stage: Stage) -> None:
    async with stage.at_work():
        stage.hub.approve = False
        stage.clock.advance(timedelta(days=24))
        stage.scheduler.wake("certificate-rotation")
        await until(lambda: len(stage.hub.requests) == 2)
    _, pending = stage.hub.requests.values()
    async with stage.at_work():
        stage.hub.approve_request(pending.name)
        await until(lambda: pending.certificate and stage.hub.session.identity.certificate == pending.certificate)
    assert len(stage.hub.requests) == 2


async def test_damaged_secret_is_repaired_from_the_slot_or_by_registering_again(new_stage: Callable[[], Stage]) -> None:
    damages = list(product(("tls.key", "tls.crt", "kubeconfig"), (b"", b"rubbish")))
    for everywhere in (False, True):
        stage = new_stage()
        await stage.joins()
        for number, (key, damage) in enumerate(damages):
            for place in (OWNER, SLOT) if everywhere else (OWNER,):
                snapshot = await stage.secrets.read(place)
                await stage.secrets.write(place, {**snapshot.contents, key: damage}, snapshot.version)
            await stage.joins()
            case = (key, damage, everywhere)
            assert len(stage.hub.issued) == (number + 2 if everywhere else 1), case
            assert len(stage.hub.clusters) == 1, case
            repaired = (await stage.secrets.read(OWNER)).contents
            assert key_matches(repaired["tls.crt"], repaired["tls.key"]), case


async def test_deleted_secrets_cost_at_most_a_new_certificate_and_never_the_clusters_name(joined: Stage) -> None:
    for names, issued in (((OWNER,), 1), ((OWNER, SLOT), 2)):  # the slot has it too
        for name in names:
            await joined.secrets.delete(name)
        await joined.joins()
        assert (len(joined.hub.issued), len(joined.hub.clusters)) == (issued, 1)


async def test_hub_decides_whether_a_credential_is_good_and_not_the_agents_clock(joined: Stage) -> None:
    joined.hub.calls.clear()
    joined.clock = joined.hub.agent_clock = ManualClock(joined.clock.now() + timedelta(days=60))
    async with joined.at_work():
        assert set(joined.hub.calls) == {"session"}
        assert len(joined.hub.issued) == 1
        joined.hub.revoked.update(joined.hub.issued)
        joined.hub.session.end(HubLostError("revoked", SessionEnd.UNAUTHENTICATED))
        await until(lambda: is_available(joined) and len(joined.hub.issued) == 2)
    assert len(joined.hub.clusters) == 1


@pytest.fixture
def expired(joined: Stage) -> Stage:
    """Agent and bootstrap credential have both expired while the agent was off."""
    joined.clock.advance(timedelta(days=40))
    joined.hub.calls.clear()
    return joined


def calls(stage: Stage) -> set[str]:
    return set(stage.hub.calls)


async def test_expired_agent_comes_back_with_its_recovery_certificate_and_no_bootstrap_kubeconfig(expired: Stage) -> None:
    before = (await expired.secrets.read(OWNER)).contents
    expired.file.unlink()
    await expired.joins()
    after = (await expired.secrets.read(OWNER)).contents
    assert calls(expired) == {"recover submit_request", "recover follow_request", "session"}
    assert after["tls.key"] != before["tls.key"]
    assert key_matches(after["tls.crt"], after["tls.key"])
    assert key_matches(after["recovery.crt"], after["tls.key"])
    assert (after["cluster-name"], after["agent-name"]) == (before["cluster-name"], before["agent-name"])
    assert await nothing_pends(expired.secrets)
    assert len(expired.hub.issued) == 2


async def test_recovery_that_needs_an_approval_waits_for_it_over_a_restart(expired: Stage) -> None:
    expired.hub.approve = False
    async with expired.running():
        await until(lambda: "recover follow_request" in calls(expired))
    async with expired.running():
        await until(lambda: expired.hub.calls.count("recover follow_request") > 1)
        (name,) = [name for name, request in expired.hub.requests.items() if request.state == "pending"]
        expired.hub.approve_request(name)
        await until(lambda: is_available(expired))


async def test_bootstrap_kubeconfig_that_is_handed_in_during_recovery_is_used(expired: Stage) -> None:
    expired.hub.approve = False
    async with expired.running():
        await until(lambda: "recover follow_request" in calls(expired))
        expired.hub.approve = True
        expired.replace_bootstrap(expired.hub.bootstrap_kubeconfig())
        await until(lambda: is_available(expired))
    assert "ensure_cluster" in calls(expired)


async def test_refused_recovery_is_reported_and_a_bootstrap_credential_replaces_it(expired: Stage) -> None:
    expired.hub.unrecoverable = ForbiddenError("the cluster is denied")
    async with expired.running() as agent:
        await until(lambda: expired.hub.dialled > 5)
        await until(lambda: "the recovery certificate does not bring this agent back" in agent.progress.ready().text)
        expired.hub.unrecoverable = None
        await until(lambda: is_available(expired))
    for refusal in (ForbiddenError("denied"), UnavailableError("TLS does not take it")):
        expired.clock.advance(timedelta(days=40))
        expired.hub.calls.clear()
        expired.hub.unrecoverable = refusal
        expired.file.write_bytes(expired.hub.bootstrap_kubeconfig())
        await expired.joins()
        assert "submit_request" in calls(expired)
        assert len(expired.hub.clusters) == 1
    expired.clock.advance(timedelta(days=100))  # its recovery certificate has expired, too
    expired.hub.calls.clear()
    expired.file.write_bytes(expired.hub.bootstrap_kubeconfig())
    await expired.joins()
    assert not any(call.startswith("recover") for call in expired.hub.calls)


async def test_agent_that_was_off_for_a_change_of_ca_recovers_unless_it_is_denied(new_stage: Callable[[], Stage]) -> None:
    for denied in (False, True):
        stage = new_stage()
        await stage.joins()
        stage.hub.outlived.update(stage.hub.issued)
        stage.clock.advance(timedelta(hours=2))  # the bootstrap credential has ended
        stage.hub.calls.clear()
        if not denied:
            await stage.joins()
            assert calls(stage) == {"recover submit_request", "recover follow_request", "session"}
            assert len(stage.hub.issued) == 2
            continue
        stage.hub.unrecoverable = ForbiddenError("denied")
        async with stage.running() as agent:
            await until(lambda: "new one with hubctl create bootstrap-kubeconfig" in agent.progress.ready().text)
            assert len(stage.hub.issued) == 1
            stage.replace_bootstrap(stage.hub.bootstrap_kubeconfig())
            await until(lambda: is_available(stage))  # noqa: B023
        assert "ensure_cluster" in calls(stage)


def revoke(hub: Stage | Several) -> None:
    """As a hub does: the certificates, and nobody is let in with what is older."""
    at = hub.hub if isinstance(hub, Stage) else hub["a"]
    at.verdict = DenialCause.CERTIFICATE_REVOKED
    at.revoked.update(at.issued)
    at.barred = ForbiddenError(MESSAGE, causes=DenialCause.CLUSTER_REVOKED.because(MESSAGE))
    at.session.end(HubLostError("revoked", SessionEnd.REVOKED))


def state(progress: AgentProgress) -> HubState | None:
    return next((hub.state for hub in progress.standing.hubs), None)


async def test_revoked_credential_is_shown_once_per_start_until_a_new_bootstrap_kubeconfig(stage: Stage) -> None:
    async with stage.at_work() as agent:
        revoke(stage)
        await until(lambda: stage.hub.calls.count("ensure_cluster") >= 5)
        assert stage.hub.calls.count("session") == 1
        await until(lambda: state(agent.progress) is HubState.REVOKED)
        stage.clock.advance(timedelta(minutes=5))  # the last beat is no sign of life any more
        await until(lambda: "hubctl create bootstrap-kubeconfig" in agent.progress.ready().text)
        assert agent.progress.live().ok
    async with stage.running() as agent:
        await until(lambda: state(agent.progress) is HubState.REVOKED)
        tried = stage.hub.calls.count("ensure_cluster")
        await until(lambda: stage.hub.calls.count("ensure_cluster") >= tried + 3)
        assert stage.hub.calls.count("session") == 2
        stage.hub.barred = None
        stage.replace_bootstrap(stage.hub.bootstrap_kubeconfig())
        await until(lambda: is_available(stage) and len(stage.hub.issued) == 2)
        await until(lambda: state(agent.progress) is HubState.READY)


async def test_denied_agent_keeps_its_credential_asks_again_and_reports_it(stage: Stage) -> None:
    async with stage.at_work() as agent:
        stage.hub.session.end(HubLostError("denied: hubctl accept", SessionEnd.REFUSED))
        await until(lambda: len(stage.hub.sessions) == 2)
        assert stage.hub.calls.count("ensure_cluster") == 1
        await until(lambda: state(agent.progress) is HubState.READY)
    assert len(stage.hub.issued) == 1


async def test_revoked_agent_of_several_hubs_goes_to_the_next_and_does_not_ask_the_first_again(world: Several) -> None:
    async with world.running() as agent:
        await world.ready()
        revoke(world)
        assert await world.arrived("b") < 1
        await world.until(lambda: state(agent.progress) is HubState.REVOKED)
        tried = world["a"].calls.count("session")
        await asyncio.sleep(7200)
        assert state(agent.progress) is HubState.REVOKED
        assert (world["a"].calls.count("session"), world.at()) == (tried, "b")


class Proving(Attest):
    """A cluster that makes tokens; `away`: its API server does not answer."""

    def __init__(self, *, away: bool = False) -> None:
        self.away = away
        self.asked: list[str] = []

    async def token(self, audience: str) -> str:
        self.asked.append(audience)
        if self.away:
            raise UnavailableError("the hub demands a token of this cluster, which cannot be had now: no answer")
        return f"token for {audience}"


async def test_agent_brings_an_attestation_token_where_the_hub_demands_one(new_stage: Callable[[], Stage]) -> None:
    stage = new_stage()
    stage.attest = proving = Proving()
    await stage.joins()
    assert proving.asked == [], "nobody demanded one"
    stage = new_stage()
    stage.hub.attestation_audience = "the-hub"
    with capture_logs() as told:
        async with stage.running():
            await until(lambda: "this agent can have none" in str(told))
        assert stage.hub.issued == []
        stage.attest = proving = Proving(away=True)
        async with stage.running():
            await until(lambda: len(proving.asked) > 1)
            proving.away = False
            await until(lambda: is_available(stage))
    assert set(proving.asked) == {"the-hub"}
    assert "cannot be had now: no answer" in str(told)
    assert "token for the-hub" not in str(told)


async def test_pod_asks_for_a_token_of_the_account_that_it_runs_as(tmp_path: Path) -> None:
    own = tmp_path / "token"
    for text in ("", "no token", "a.b.c"):
        own.write_text(text)
        with pytest.raises(InvalidError, match="--attestation-service-account NAMESPACE/NAME"):
            await ServiceAccountAttest(cast("KubeClient", None), own=own).token("the-hub")
    own.write_text(TokenKeys([generate_key()]).sign({"sub": "system:serviceaccount:agents:spoke"}))
    asked: list[tuple[str, object]] = []

    class Client:
        async def create(self, path: str, body: dict[str, object]) -> object:
            asked.append((path, body["spec"]))
            return {"status": {"token": "t"}}

    assert await ServiceAccountAttest(cast("KubeClient", Client()), own=own).token("the-hub") == "t"
    spec = {"audiences": ["the-hub"], "expirationSeconds": 600}
    assert asked == [("/api/v1/namespaces/agents/serviceaccounts/spoke/token", spec)]
