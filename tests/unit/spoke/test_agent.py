"""The agent as a whole, against a hub in memory: how it joins, and how it keeps its session."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from structlog.testing import capture_logs

from machinery.client.kubeconfig import parse_kubeconfig
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import HubId
from machinery.meta.conditions import AVAILABLE, FALSE, JOINED, TRUE
from machinery.pki import key_matches
from spoke.domain.next_step import SessionEnd
from spoke.domain.route import Reach
from spoke.options import AgentOptions
from spoke.ports.cluster import ApiServerHealth
from spoke.ports.hub import HubLostError, HubSession
from tests.checks import check_refusal_of
from tests.fakes.credentials import MemorySecrets
from tests.fakes.hub import MemoryHub, MemoryHubClient, MemorySession
from tests.fakes.stage import OWNER, SLOT, Stage, availability, is_available, nothing_pends, until


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
    assert list(stage.hub.clusters) == [first]
    assert len(stage.hub.requests) == 1


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
        assert stage.hub.clusters == {}
        assert not agent.progress.ready().ok
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


async def logged(stage: Stage, text: bytes, said: str) -> None:
    with capture_logs() as logs:
        stage.replace_bootstrap(text)
        await until(lambda: any(said in entry.get("error", "") for entry in logs))


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
    other = MemoryHub(stage.clock, hub_id=HubId("aaaaaaaa-0000-4000-8000-000000000002"))
    first = stage.hub
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
        assert stage.hub.session.beats == []
        assert stage.hub.session.reports == []
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
        stage.hub.beat_interval = stage.hub.lease_duration = timedelta(seconds=2)  # the hub tells the interval first
        stage.hub.changed()
        await until(lambda: len(stage.hub.session.beats) > beats)


async def test_lost_session_is_followed_by_the_next_with_the_same_credential(stage: Stage) -> None:
    async with stage.at_work() as agent:
        for sessions, loss in enumerate((SessionEnd.UNREACHABLE, SessionEnd.SUPERSEDED, SessionEnd.REFUSED), 2):
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
        stage.hub.session.end(HubLostError("deleted", SessionEnd.FORGOTTEN))
        await until(lambda: "info" in stage.hub.calls[-3:])
        calls = len(stage.hub.calls)
        await asyncio.sleep(600)
        assert 20 < len(stage.hub.calls) - calls < 100
        stage.hub.clusters.update(known)
        await until(lambda: is_available(stage) and len(stage.hub.sessions) == 2, 60)
        assert len(stage.hub.issued) == 1
        stage.hub.clusters.clear()
        stage.hub.session.end(HubLostError("deleted", SessionEnd.FORGOTTEN))
        stage.replace_bootstrap(stage.hub.bootstrap_kubeconfig())
        await until(lambda: is_available(stage) and len(stage.hub.issued) == 2, 60)


async def test_drained_agent_opens_the_new_session_before_it_leaves_the_old(stage: Stage) -> None:
    async with stage.at_work():
        old = stage.hub.session
        old.drain()
        await until(lambda: is_available(stage) and stage.hub.session is not old)
    assert stage.hub.calls.count("session") == 2


async def test_failing_api_server_changes_the_verdict_and_nothing_is_reported_twice_but_at_a_resync(stage: Stage) -> None:
    async with stage.at_work():
        session = stage.hub.session
        await until(lambda: len(session.beats) > 5)
        told, beats = len(session.reports), len(session.beats)
        stage.cluster.set_nodes(await stage.cluster.nodes())
        await until(lambda: len(session.beats) > beats + 5)
        assert len(session.reports) == told
        stage.scheduler.wake("status")
        await until(lambda: len(session.reports) == told + 1)
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
    told = [line["message"] for line in logs if line["event"] == "agent.second_refused"]
    assert told == [stage.hub.second_agent]
