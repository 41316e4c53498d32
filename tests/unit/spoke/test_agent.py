"""The agent as a whole, against a hub in memory: how it joins, keeps its session, and renews, recovers and proves itself."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import cast

import pytest
from structlog.testing import capture_logs

from machinery.client.kubeconfig import parse_kubeconfig
from machinery.client.rest import KubeClient
from machinery.errors import DenialCause, ForbiddenError, InvalidError, UnavailableError
from machinery.identity import HubId
from machinery.meta.conditions import AVAILABLE, CERTIFICATE_ROTATED, FALSE, JOINED, TRUE
from machinery.pki import TokenKeys, generate_key, key_matches, parse_certificate
from machinery.runtime.clock import ManualClock
from spoke.cluster import ServiceAccountAttest
from spoke.domain.hubs import HubState
from spoke.domain.next_step import SessionLoss
from spoke.domain.route import Reach
from spoke.domain.schedule import rotate_at
from spoke.observability.progress import AgentProgress
from spoke.options import AgentOptions
from spoke.ports.cluster import ApiServerHealth, Attest
from spoke.ports.hub import HubLostError, HubSession
from spoke.session.reports import CHECKS_PER_REPORT
from tests.checks import check_refusal_of
from tests.fakes.credentials import MemorySecrets
from tests.fakes.hub import MemoryHub, MemoryHubClient, MemorySession
from tests.fakes.several import Several
from tests.fakes.stage import OWNER, SLOT, Stage, availability, is_available, nothing_pends, until

MESSAGE = "revoked, and this bootstrap credential is older: have a new one made"


async def test_agent_registers_stores_its_credential_in_ocms_layout_and_reports_available(stage: Stage) -> None:
    async with stage.at_work() as agent:
        assert agent.progress.ready().ok
        first = stage.hub.session
    report = first.reports[-1]
    assert {condition.type: condition.status for condition in report.conditions} == {JOINED: TRUE, AVAILABLE: TRUE}
    assert (report.capacity, report.node_count) == ({"cpu": "4"}, 1)
    contents = (await stage.secrets.read(OWNER)).contents
    ocms = {"kubeconfig", "cluster-name", "agent-name", "tls.crt", "tls.key"}
    assert set(contents) == {*ocms, "recovery.crt", "hub-id", "epoch"}
    assert key_matches(contents["tls.crt"], contents["tls.key"])
    assert key_matches(contents["recovery.crt"], contents["tls.key"])
    kubeconfig = parse_kubeconfig(contents["kubeconfig"], source="secret", folder=contents)
    assert (kubeconfig.context, kubeconfig.namespace, kubeconfig.user) == ("default-context", "configuration", "default-auth")
    assert b"PRIVATE KEY" not in contents["kubeconfig"]
    assert stage.directory.contents == contents
    assert await nothing_pends(stage.secrets)
    assert isinstance(stage.secrets, MemorySecrets)
    assert stage.secrets.written == [*[SLOT] * 4, OWNER], "key and request, its name, the certificate, no request; the owner"
    stage.hub.calls.clear()
    stage.clock.advance(timedelta(days=2))  # the bootstrap credential has expired
    stage.file.unlink()
    await stage.joins()
    assert set(stage.hub.calls) == {"session"}, "a valid credential needs nothing else after a restart"
    assert len(stage.hub.issued) == 1


async def test_full_disk_under_the_mirror_does_not_stop_the_agent_and_is_repaired(stage: Stage) -> None:
    stage.directory.full = True
    async with stage.at_work():
        stage.scheduler.wake("mirror")
        assert stage.directory.contents == {}
        stage.directory.full = False
        stage.scheduler.wake("mirror")
        assert stage.directory.contents == (await stage.secrets.read(OWNER)).contents
        stage.scheduler.wake("mirror")
    assert stage.directory.replaced == 1


async def test_generated_name_is_a_uuid_stored_before_the_hub_is_called_and_survives_a_restart(stage: Stage) -> None:
    stage.hub.away = True
    async with stage.running():
        await until(lambda: stage.hub.calls.count("info") > 1)
    assert stage.hub.requests == {}
    stage.hub.away, stage.hub.approve = False, False
    stage.hub.calls.clear()
    async with stage.running():
        await until(lambda: "ensure_cluster" in stage.hub.calls)
        kept = (await stage.secrets.read(SLOT)).contents
        await until(lambda: stage.hub.requests)
    (first,) = stage.hub.clusters
    assert str(uuid.UUID(first)) == first == kept["cluster-name"].decode()
    async with stage.running():
        await until(lambda: stage.hub.calls.count("follow_request") > 1)
        stage.hub.approve_request(next(iter(stage.hub.requests)))
        await until(lambda: is_available(stage))
    assert (list(stage.hub.clusters), len(stage.hub.requests)) == ([first], 1)


async def test_bootstrap_kubeconfig_gives_the_cluster_name_unless_an_option_does(stage: Stage) -> None:
    stage.hub.approve = False
    stage.file.write_bytes(stage.hub.bootstrap_kubeconfig(cluster="taken"))
    async with stage.running():
        await until(lambda: stage.hub.requests)
    stage.hub.approve = True
    stage.file.write_bytes(stage.hub.bootstrap_kubeconfig(cluster="edge-7"))
    await stage.joins()
    assert list(stage.hub.clusters) == ["taken", "edge-7"], "another name ends the wait under the first"
    contents = (await stage.secrets.read(OWNER)).contents
    assert contents["cluster-name"] == b"edge-7"
    assert b"clusterName" not in contents["kubeconfig"]
    assert await nothing_pends(stage.secrets)
    stage.file.write_bytes(stage.hub.bootstrap_kubeconfig(cluster="edge-8"))
    stage.options = replace(stage.options, cluster_name="chosen")
    await stage.joins()
    assert stage.hub.session.cluster == "chosen", "an option makes a new registration, whatever the kubeconfig names"
    assert list(stage.hub.clusters) == ["taken", "edge-7", "chosen"]


async def test_expired_or_unknown_bootstrap_credential_creates_nothing_until_it_is_replaced(stage: Stage) -> None:
    stage.clock.advance(timedelta(hours=2))
    async with stage.running() as agent:
        await until(lambda: stage.hub.calls.count("info") > 2)
        assert (stage.hub.clusters, agent.progress.ready().ok) == ({}, False)
        unknown = stage.hub.bootstrap_kubeconfig()
        stage.hub.users.clear()
        stage.replace_bootstrap(unknown)
        await until(lambda: "hubctl create bootstrap-kubeconfig" in agent.progress.ready().text)
        assert str(stage.file) in agent.progress.ready().text
        stage.replace_bootstrap(stage.hub.bootstrap_kubeconfig())
        await until(lambda: is_available(stage))


async def test_unusable_bootstrap_kubeconfig_ends_the_first_start(stage: Stage) -> None:
    stage.options = replace(stage.options, reach=Reach(driver="grpc"))
    stage.file.write_bytes(stage.hub.bootstrap_kubeconfig().replace(b"name: muster", b"name: other"))
    await check_refusal_of(InvalidError, stage.agent().run(), match=r"csr driver.*leave the driver on auto")


async def logged(stage: Stage, text: bytes, message: str) -> None:
    with capture_logs() as logs:
        stage.replace_bootstrap(text)
        await until(lambda: any(message in entry.get("error", "") for entry in logs))


async def test_broken_bootstrap_file_that_is_put_in_place_later_is_logged_and_changes_nothing(stage: Stage) -> None:
    good = stage.file.read_bytes()
    stage.hub.approve = False
    async with stage.running():
        await until(lambda: "follow_request" in stage.hub.calls)
        await logged(stage, b"nonsense: [", "is not YAML")
        stage.hub.approve_request(next(iter(stage.hub.requests)))  # it goes on with what it had
        await until(lambda: is_available(stage))
    for port in (b"84433", b"port"):
        stage.file.write_bytes(good)
        sessions = len(stage.hub.sessions)
        async with stage.at_work():
            await logged(stage, good.replace(b":8443", b":" + port), "host:port")
            assert len(stage.hub.sessions) == sessions + 1
            assert is_available(stage)


async def test_bootstrap_kubeconfig_for_another_hub_moves_the_agent_there(stage: Stage) -> None:
    other, first = MemoryHub(stage.clock, hub_id=HubId("aaaaaaaa-0000-4000-8000-000000000002")), stage.hub
    async with stage.at_work():
        stage.hub = other
        stage.replace_bootstrap(other.bootstrap_kubeconfig())
        await until(lambda: is_available(stage))
    assert first.session.over
    assert list(first.clusters) == list(other.clusters)


async def test_hub_with_another_id_than_the_kubeconfigs_is_not_joined(stage: Stage) -> None:
    stage.hub.hub_id = HubId("bbbbbbbb-0000-4000-8000-000000000003")
    async with stage.running() as agent:
        await until(lambda: "has the id" in agent.progress.ready().text)
    assert stage.hub.clusters == {}


async def test_denied_request_gets_a_new_key_and_a_forgotten_one_is_submitted_with_the_same_bytes(stage: Stage) -> None:
    stage.hub.approve = False
    async with stage.running():
        await until(lambda: "follow_request" in stage.hub.calls)
    (forgotten,) = stage.hub.requests.values()
    stage.hub.requests.clear()
    stage.hub.calls.clear()
    async with stage.running():
        await until(lambda: stage.hub.requests and "follow_request" in stage.hub.calls)
        (first,) = stage.hub.requests.values()
        assert first.pem == forgotten.pem
        stage.hub.approve = True
        stage.hub.deny_request(first.name)
        await until(lambda: is_available(stage))
    first, second = stage.hub.requests.values()
    assert first.pem != second.pem
    assert len(stage.hub.clusters) == 1


async def test_failed_save_is_repeated_without_a_request_for_another_certificate(stage: Stage) -> None:
    stage.hub.approve = False
    assert isinstance(stage.secrets, MemorySecrets)
    async with stage.running():
        await until(lambda: "follow_request" in stage.hub.calls)
        stage.secrets.refuse_writes = UnavailableError("no space")
        stage.hub.approve_request(next(iter(stage.hub.requests)))
        follows = stage.hub.calls.count("follow_request")
        await until(lambda: stage.hub.requests and stage.hub.dialled > 3)
        stage.secrets.refuse_writes = None
        await until(lambda: is_available(stage))
    assert len(stage.hub.issued) == 1
    assert stage.hub.calls.count("follow_request") <= follows + 1


async def test_agent_beats_and_reports_only_while_its_cluster_is_accepted(stage: Stage) -> None:
    stage.hub.accept = False
    async with stage.running() as agent:
        await until(lambda: "accept" in agent.progress.ready().text)
        assert (stage.hub.session.beats, stage.hub.session.reports) == ([], [])
        (cluster,) = stage.hub.clusters
        stage.hub.set_accepted(cluster, accepted=True)
        await until(lambda: is_available(stage))
        stage.hub.set_accepted(cluster, accepted=False)
        await until(lambda: not stage.hub.session.over)
        beats = len(stage.hub.session.beats)
        stage.hub.set_accepted(cluster, accepted=True)
        await until(lambda: len(stage.hub.session.beats) > beats)


async def test_lease_that_is_made_shorter_than_the_interval_brings_the_next_beat_forward(stage: Stage) -> None:
    stage.hub.beat_interval = timedelta(hours=1)
    stage.hub.lease_duration = timedelta(hours=2)
    async with stage.at_work():
        beats = len(stage.hub.session.beats)
        stage.hub.beat_interval = stage.hub.lease_duration = timedelta(seconds=2)  # the hub sends the interval first
        stage.hub.changed()
        await until(lambda: len(stage.hub.session.beats) > beats)


async def test_lost_session_is_followed_by_the_next_with_the_same_credential(stage: Stage) -> None:
    async with stage.at_work() as agent:
        for sessions, loss in enumerate((SessionLoss.UNREACHABLE, SessionLoss.SUPERSEDED, SessionLoss.REFUSED), 2):
            stage.hub.session.end(HubLostError("gone", loss))
            await until(partial(lambda count: is_available(stage) and len(stage.hub.sessions) == count, sessions))
        stage.hub.away = True
        stage.hub.session.end(HubLostError("gone"))
        tried = stage.hub.dialled
        await until(lambda: stage.hub.dialled > tried + 3)
        stage.clock.advance(timedelta(hours=3))
        assert agent.progress.live().ok, "a hub that is away for long restarts no agent"
        assert not agent.progress.ready().ok
        stage.hub.away = False
        await until(lambda: is_available(stage))
        assert agent.progress.ready().ok
    assert len(stage.hub.issued) == 1


async def test_cluster_deleted_at_the_hub_is_registered_again_unless_it_is_restored_before(stage: Stage) -> None:
    """Without a good bootstrap credential it asks with pauses."""
    stage.options = AgentOptions()
    async with stage.at_work():
        stage.clock.advance(timedelta(hours=2))
        known = dict(stage.hub.clusters)
        stage.hub.clusters.clear()
        stage.hub.session.end(HubLostError("deleted", SessionLoss.FORGOTTEN))
        await until(lambda: "info" in stage.hub.calls[-3:])
        calls = len(stage.hub.calls)
        await asyncio.sleep(600)
        assert 20 < len(stage.hub.calls) - calls < 100
        stage.hub.clusters.update(known)
        await until(lambda: is_available(stage) and len(stage.hub.sessions) == 2, 60)
        assert len(stage.hub.issued) == 1
        stage.hub.clusters.clear()
        stage.hub.session.end(HubLostError("deleted", SessionLoss.FORGOTTEN))
        stage.replace_bootstrap(stage.hub.bootstrap_kubeconfig())
        await until(lambda: is_available(stage) and len(stage.hub.issued) == 2, 60)


async def test_drained_agent_opens_the_new_session_before_it_leaves_the_old(stage: Stage) -> None:
    async with stage.at_work():
        old, calls = stage.hub.session, stage.hub.calls
        stage.hub.faults["session"] = UnavailableError("the next replica is not ready")
        old.drain()
        await until(lambda: calls.count("session") > 3)
        assert not old.over
        del stage.hub.faults["session"]
        failed = calls.count("session")
        await until(lambda: is_available(stage) and stage.hub.session is not old)
    assert calls.count("session") == failed + 1


async def test_failing_api_server_changes_the_verdict_and_nothing_is_reported_twice_but_at_a_resync(stage: Stage) -> None:
    async def check() -> None:
        beats = len(session.beats)
        stage.scheduler.wake("status")
        await until(lambda: len(session.beats) > beats + 1)

    async with stage.at_work():
        session = stage.hub.session
        await until(lambda: len(session.beats) > 5)
        reports, beats = len(session.reports), len(session.beats)
        stage.cluster.set_nodes(await stage.cluster.nodes())
        await until(lambda: len(session.beats) > beats + 5)
        for _ in range(CHECKS_PER_REPORT - 1):
            await check()
        assert len(session.reports) == reports
        stage.scheduler.wake("status")
        await until(lambda: len(session.reports) == reports + 1)
        stage.cluster.answered_health = ApiServerHealth(ok=False, status_code=500, detail="etcd is gone")
        stage.scheduler.wake("status")
        await until(lambda: session.reports[-1].complete is False)
        assert session.beats[-1] is True
        stage.clock.advance(timedelta(seconds=20))
        stage.scheduler.wake("status")
        await until(lambda: session.beats[-1] is False and availability(session) == FALSE)
        stage.cluster.answered_health = ApiServerHealth(ok=True, status_code=200)
        stage.scheduler.wake("status")
        await until(lambda: session.beats[-1] is True)


async def test_agent_ends_in_the_middle_of_a_change_of_session(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old session is lost in the moment in which the agent is cancelled."""
    opening = asyncio.Event()

    @asynccontextmanager
    async def never(_client: MemoryHubClient, _uid: str) -> AsyncIterator[HubSession]:
        opening.set()
        await asyncio.Event().wait()
        yield stage.hub.session

    async def torn(_session: MemorySession, *, available: bool | None) -> None:
        del available
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise HubLostError("the stream is gone") from None

    agent = asyncio.create_task(stage.agent().run())
    await until(lambda: is_available(stage))
    monkeypatch.setattr(MemoryHubClient, "session", never)
    monkeypatch.setattr(MemorySession, "beat", torn)
    stage.hub.session.drain()
    await asyncio.wait_for(opening.wait(), 5)
    agent.cancel()
    done, _ = await asyncio.wait([agent], timeout=5)
    assert done, "the agent hangs"


async def test_agent_that_has_the_session_logs_once_that_another_one_was_refused(stage: Stage) -> None:
    with capture_logs() as logs:
        async with stage.running():
            await until(lambda: is_available(stage))
            stage.hub.second_agent = "Agent a has the session of this cluster, and agent b is refused."
            stage.hub.changed()
            await until(lambda: any(line["event"] == "agent.second_refused" for line in logs))
            stage.hub.lease_duration *= 2
            beats = len(stage.hub.session.beats)
            await until(lambda: len(stage.hub.session.beats) > beats + 2)
    assert [line["message"] for line in logs if line["event"] == "agent.second_refused"] == [stage.hub.second_agent]


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
    assert (len(stage.hub.issued), stage.hub.calls.count("session")) == (2, 2)


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
        assert (set(joined.hub.calls), len(joined.hub.issued)) == ({"session"}, 1)
        joined.hub.revoked.update(joined.hub.issued)
        joined.hub.session.end(HubLostError("revoked", SessionLoss.UNAUTHENTICATED))
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
    expired.hub.faults["recover submit_request"] = ForbiddenError("the cluster is denied")
    async with expired.running() as agent:
        await until(lambda: expired.hub.dialled > 5)
        await until(lambda: "the recovery certificate does not bring this agent back" in agent.progress.ready().text)
        expired.hub.faults.clear()
        await until(lambda: is_available(expired))
    for refusal in (ForbiddenError("denied"), UnavailableError("TLS does not take it")):
        expired.clock.advance(timedelta(days=40))
        expired.hub.calls.clear()
        expired.hub.faults["recover submit_request"] = refusal
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
            assert (calls(stage), len(stage.hub.issued)) == ({"recover submit_request", "recover follow_request", "session"}, 2)
            continue
        stage.hub.faults["recover submit_request"] = ForbiddenError("denied")
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
    at.faults["ensure_cluster"] = ForbiddenError(MESSAGE, causes=DenialCause.CLUSTER_REVOKED.because(MESSAGE))
    at.session.end(HubLostError("revoked", SessionLoss.REVOKED))


def state(progress: AgentProgress) -> HubState | None:
    return next((hub.state for hub in progress.hubs_status.hubs), None)


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
        stage.hub.faults.clear()
        stage.replace_bootstrap(stage.hub.bootstrap_kubeconfig())
        await until(lambda: is_available(stage) and len(stage.hub.issued) == 2)
        await until(lambda: state(agent.progress) is HubState.READY)


async def test_denied_agent_keeps_its_credential_asks_again_and_reports_it(stage: Stage) -> None:
    async with stage.at_work() as agent:
        stage.hub.session.end(HubLostError("denied: hubctl accept", SessionLoss.REFUSED))
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
    with capture_logs() as log_lines:
        async with stage.running():
            await until(lambda: "this agent cannot get one" in str(log_lines))
        assert stage.hub.issued == []
        stage.attest = proving = Proving(away=True)
        async with stage.running():
            await until(lambda: len(proving.asked) > 1)
            proving.away = False
            await until(lambda: is_available(stage))
    assert set(proving.asked) == {"the-hub"}
    assert "cannot be had now: no answer" in str(log_lines)
    assert "token for the-hub" not in str(log_lines)


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
