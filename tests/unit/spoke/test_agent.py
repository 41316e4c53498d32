"""The agent as a whole, against a hub in memory."""

import uuid
from dataclasses import replace
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from machinery.clock import ManualClock
from machinery.conditions import AVAILABLE, CERTIFICATE_ROTATED, FALSE, JOINED, TRUE
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import HubId
from machinery.kubeconfig import parse_kubeconfig
from machinery.pki import key_matches, parse_certificate
from spoke.domain.reach import Reach
from spoke.domain.rotation import rotate_at
from spoke.ports import Health, HubLostError, Loss
from tests.fakes.credentials import MemorySecrets
from tests.fakes.hub import MemoryHub, MemorySession
from tests.fakes.stage import OWNER, SLOT, Stage, nothing_pends, until


def is_available(stage: Stage) -> bool:
    """The newest session has told that the cluster is available, and has carried a beat."""
    if not stage.hub.sessions or stage.hub.session.over:
        return False
    return availability(stage.hub.session) == TRUE and bool(stage.hub.session.beats)


def availability(session: MemorySession) -> str | None:
    """As it was reported last; a beat with the same verdict comes sooner or later than that."""
    conditions = {entry.type: entry.status for report in session.reports[-1:] for entry in report.conditions}
    return conditions.get(AVAILABLE)


async def test_an_agent_registers_and_reports_its_cluster_available(stage: Stage) -> None:
    async with stage.running() as agent:
        await until(lambda: is_available(stage))
        assert agent.progress.ready().ok
    report = stage.hub.session.reports[-1]
    assert {condition.type: condition.status for condition in report.conditions} == {JOINED: TRUE, AVAILABLE: TRUE}
    assert report.capacity == {"cpu": "4"}
    assert report.node_count == 1
    assert len(stage.hub.issued) == 1


async def test_the_hub_kubeconfig_secret_has_ocms_layout_and_is_mirrored(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
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


async def test_a_full_disk_under_the_mirror_holds_nothing_up_and_is_made_good(stage: Stage) -> None:
    stage.directory.full = True
    async with stage.running():
        await until(lambda: is_available(stage))
        stage.timetable.wake("mirror")
        assert stage.directory.contents == {}
        stage.directory.full = False
        stage.timetable.wake("mirror")
        assert stage.directory.contents == (await stage.secrets.read(OWNER)).contents
        stage.timetable.wake("mirror")
    assert stage.directory.replaced == 1


async def test_a_generated_name_is_a_uuid_and_survives_a_restart_before_the_approval(stage: Stage) -> None:
    stage.hub.approve = False
    async with stage.running():
        await until(lambda: stage.hub.requests)
    first = next(iter(stage.hub.clusters))
    assert str(uuid.UUID(first)) == first
    async with stage.running():
        await until(lambda: stage.hub.calls.count("follow_request") > 1)
        stage.hub.approve_request(next(iter(stage.hub.requests)))
        await until(lambda: is_available(stage))
    assert list(stage.hub.clusters) == [first]
    assert len(stage.hub.requests) == 1


async def test_a_bootstrap_kubeconfig_that_is_bound_to_a_name_gives_it(stage: Stage) -> None:
    stage.file.write_bytes(stage.hub.bootstrap_kubeconfig(cluster="edge-7"))
    async with stage.running():
        await until(lambda: is_available(stage))
    assert list(stage.hub.clusters) == ["edge-7"]
    contents = (await stage.secrets.read(OWNER)).contents
    assert contents["cluster-name"] == b"edge-7"
    assert b"clusterName" not in contents["kubeconfig"]


async def test_a_bootstrap_kubeconfig_for_another_name_ends_the_wait_under_the_first(stage: Stage) -> None:
    stage.hub.approve = False
    stage.file.write_bytes(stage.hub.bootstrap_kubeconfig(cluster="taken"))
    async with stage.running():
        await until(lambda: stage.hub.requests)
    stage.hub.approve = True
    stage.file.write_bytes(stage.hub.bootstrap_kubeconfig(cluster="edge-7"))
    async with stage.running():
        await until(lambda: is_available(stage))
    assert (await stage.secrets.read(OWNER)).contents["cluster-name"] == b"edge-7"
    assert await nothing_pends(stage.secrets)


async def test_a_name_that_was_chosen_wins_over_the_one_a_bootstrap_kubeconfig_is_bound_to(stage: Stage) -> None:
    stage.options = replace(stage.options, cluster_name="chosen")
    stage.file.write_bytes(stage.hub.bootstrap_kubeconfig(cluster="edge-7"))
    async with stage.running():
        await until(lambda: is_available(stage))
    assert list(stage.hub.clusters) == ["chosen"]


async def test_the_names_are_persisted_before_the_hub_hears_anything(stage: Stage) -> None:
    stage.hub.away = True
    async with stage.running():
        await until(lambda: stage.hub.calls.count("info") > 1)
    assert stage.hub.requests == {}
    stage.hub.away = False
    stage.hub.approve = False
    stage.hub.calls.clear()
    async with stage.running():
        await until(lambda: "ensure_cluster" in stage.hub.calls)
        kept = (await stage.secrets.read(SLOT)).contents
    assert kept["cluster-name"].decode() in stage.hub.clusters


async def test_a_valid_credential_needs_no_registration_after_a_restart(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
    stage.hub.calls.clear()
    async with stage.running():
        await until(lambda: is_available(stage) and len(stage.hub.sessions) == 2)
    assert set(stage.hub.calls) == {"session"}


async def test_a_valid_credential_works_with_an_expired_bootstrap_credential(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
    stage.clock.advance(timedelta(days=2))
    async with stage.running():
        await until(lambda: is_available(stage) and len(stage.hub.sessions) == 2)
    assert len(stage.hub.issued) == 1


async def test_a_valid_credential_works_without_any_bootstrap_file(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
    stage.file.unlink()
    async with stage.running():
        await until(lambda: is_available(stage) and len(stage.hub.sessions) == 2)


async def test_an_expired_bootstrap_credential_creates_nothing_until_it_is_replaced(stage: Stage) -> None:
    stage.clock.advance(timedelta(hours=2))
    async with stage.running() as agent:
        await until(lambda: stage.hub.calls.count("info") > 2)
        assert stage.hub.clusters == {}
        assert not agent.progress.ready().ok
        stage.replace_bootstrap(stage.hub.bootstrap_kubeconfig())
        await until(lambda: is_available(stage))


async def test_an_unknown_bootstrap_credential_is_refused_in_words_that_say_what_to_do(stage: Stage) -> None:
    stage.hub.users.clear()
    async with stage.running() as agent:
        await until(lambda: "hubctl create bootstrap-kubeconfig" in agent.progress.ready().text)
        assert str(stage.file) in agent.progress.ready().text
        stage.replace_bootstrap(stage.hub.bootstrap_kubeconfig())
        await until(lambda: is_available(stage))


async def test_an_unusable_bootstrap_kubeconfig_ends_the_first_start(stage: Stage) -> None:
    stage.options = replace(stage.options, reach=Reach(driver="grpc"))
    stage.file.write_bytes(stage.hub.bootstrap_kubeconfig().replace(b"name: muster", b"name: other"))
    with pytest.raises(InvalidError, match=r"csr driver.*leave the driver on auto"):
        await stage.agent().run()


async def test_a_broken_file_put_in_place_later_is_told_and_survived(stage: Stage) -> None:
    stage.hub.approve = False
    async with stage.running():
        await until(lambda: "follow_request" in stage.hub.calls)
        with capture_logs() as logs:
            stage.replace_bootstrap(b"nonsense: [")
            await until(lambda: any("is not YAML" in entry.get("error", "") for entry in logs))
        stage.hub.approve_request(next(iter(stage.hub.requests)))  # it goes on with what it had
        await until(lambda: is_available(stage))


@pytest.mark.parametrize("port", [b"84433", b"port"])
async def test_a_mistake_in_a_later_bootstrap_kubeconfig_costs_no_session(stage: Stage, port: bytes) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
        with capture_logs() as logs:
            stage.replace_bootstrap(stage.file.read_bytes().replace(b":8443", b":" + port))
            await until(lambda: any("host:port" in entry.get("error", "") for entry in logs))
        assert len(stage.hub.sessions) == 1
        assert is_available(stage)


async def test_a_bootstrap_kubeconfig_for_another_hub_moves_the_agent_there(stage: Stage) -> None:
    other = MemoryHub(stage.clock, hub_id=HubId("aaaaaaaa-0000-4000-8000-000000000002"))
    first = stage.hub
    async with stage.running():
        await until(lambda: is_available(stage))
        stage.hub = other
        stage.replace_bootstrap(other.bootstrap_kubeconfig())
        await until(lambda: is_available(stage))
    assert first.session.over
    assert list(first.clusters) == list(other.clusters)


async def test_a_hub_with_another_id_than_the_kubeconfigs_is_not_joined(stage: Stage) -> None:
    stage.hub.hub_id = HubId("bbbbbbbb-0000-4000-8000-000000000003")
    async with stage.running() as agent:
        await until(lambda: "has the id" in agent.progress.ready().text)
    assert stage.hub.clusters == {}


async def test_a_denied_request_is_followed_by_a_new_one_with_a_new_key(stage: Stage) -> None:
    stage.hub.approve = False
    async with stage.running():
        await until(lambda: "follow_request" in stage.hub.calls)
        stage.hub.approve = True
        stage.hub.deny_request(next(iter(stage.hub.requests)))
        await until(lambda: is_available(stage))
    first, second = stage.hub.requests.values()
    assert first.pem != second.pem
    assert len(stage.hub.clusters) == 1


async def test_a_request_that_the_hub_forgot_is_submitted_again_with_the_same_bytes(stage: Stage) -> None:
    stage.hub.approve = False
    async with stage.running():
        await until(lambda: "follow_request" in stage.hub.calls)
    (forgotten,) = stage.hub.requests.values()
    stage.hub.requests.clear()
    stage.hub.approve = True
    async with stage.running():
        await until(lambda: is_available(stage))
    assert [request.pem for request in stage.hub.requests.values()] == [forgotten.pem]


async def test_a_failed_save_is_repeated_without_asking_for_another_certificate(stage: Stage) -> None:
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


async def test_an_agent_waits_for_acceptance_without_beating_or_reporting(stage: Stage) -> None:
    stage.hub.accept = False
    async with stage.running() as agent:
        await until(lambda: "accept" in agent.progress.ready().text)
        assert stage.hub.session.beats == []
        assert stage.hub.session.reports == []
        stage.hub.set_accepted(next(iter(stage.hub.clusters)), accepted=True)
        await until(lambda: is_available(stage))


async def test_a_withdrawn_acceptance_stops_the_beats(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
        stage.hub.set_accepted(next(iter(stage.hub.clusters)), accepted=False)
        await until(lambda: not stage.hub.session.over)
        beats = len(stage.hub.session.beats)
        stage.hub.set_accepted(next(iter(stage.hub.clusters)), accepted=True)
        await until(lambda: len(stage.hub.session.beats) > beats)


async def test_a_lease_that_is_made_shorter_than_the_interval_brings_the_next_beat_forward(stage: Stage) -> None:
    stage.hub.beat_interval = timedelta(hours=1)
    stage.hub.lease_duration = timedelta(hours=2)
    async with stage.running():
        await until(lambda: is_available(stage) and stage.hub.session.beats)
        beats = len(stage.hub.session.beats)
        stage.hub.beat_interval = stage.hub.lease_duration = timedelta(seconds=2)  # the hub tells the interval first
        stage.hub.changed()
        await until(lambda: len(stage.hub.session.beats) > beats)


@pytest.mark.parametrize("loss", [Loss.UNREACHABLE, Loss.SUPERSEDED, Loss.REFUSED])
async def test_a_lost_session_is_followed_by_the_next_with_the_same_credential(stage: Stage, loss: Loss) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
        stage.hub.session.end(HubLostError("gone", loss))
        await until(lambda: is_available(stage) and len(stage.hub.sessions) == 2)
    assert len(stage.hub.issued) == 1


async def test_a_hub_that_is_away_for_long_ends_no_agent_and_leaves_it_alive(stage: Stage) -> None:
    async with stage.running() as agent:
        await until(lambda: is_available(stage))
        stage.hub.away = True
        stage.hub.session.end(HubLostError("gone"))
        tried = stage.hub.dialled
        await until(lambda: stage.hub.dialled > tried + 3)
        stage.clock.advance(timedelta(hours=3))
        assert agent.progress.live().ok
        assert not agent.progress.ready().ok
        stage.hub.away = False
        await until(lambda: is_available(stage))
        assert agent.progress.ready().ok


async def test_a_revoked_certificate_leads_to_a_new_registration(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
        stage.hub.revoked.update(stage.hub.issued)
        stage.hub.session.end(HubLostError("revoked", Loss.UNAUTHENTICATED))
        await until(lambda: is_available(stage) and len(stage.hub.issued) == 2)
    assert len(stage.hub.clusters) == 1


async def test_a_cluster_that_was_deleted_at_the_hub_is_registered_again(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
        stage.hub.clusters.clear()
        stage.hub.session.end(HubLostError("deleted", Loss.FORGOTTEN))
        await until(lambda: is_available(stage) and len(stage.hub.issued) == 2)


async def test_a_deleted_cluster_that_is_restored_is_served_by_the_credential_that_it_has(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
        stage.clock.advance(timedelta(hours=2))
        known = dict(stage.hub.clusters)
        stage.hub.clusters.clear()
        stage.hub.session.end(HubLostError("deleted", Loss.FORGOTTEN))
        await until(lambda: "info" in stage.hub.calls[-3:])
        stage.hub.clusters.update(known)
        await until(lambda: is_available(stage) and len(stage.hub.sessions) == 2)
    assert len(stage.hub.issued) == 1


async def test_a_drained_agent_opens_the_new_session_before_it_leaves_the_old(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
        old = stage.hub.session
        old.drain()
        await until(lambda: is_available(stage) and stage.hub.session is not old)
        await until(lambda: stage.hub.session.reports)
    assert stage.hub.calls.count("session") == 2


async def test_a_certificate_is_replaced_in_time_and_the_session_goes_over_to_it(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
        first = stage.hub.session
        leaf = parse_certificate(first.identity.certificate)
        due = rotate_at(leaf.serial, leaf.not_before, leaf.not_after)
        assert stage.timetable.instants["certificate-rotation"] == due
        stage.clock.advance(due - stage.clock.now())
        stage.timetable.wake("certificate-rotation")
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


async def test_a_rotation_before_its_time_does_nothing(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
        stage.timetable.wake("certificate-rotation")
        beats = len(stage.hub.session.beats)
        await until(lambda: len(stage.hub.session.beats) > beats + 3)
    assert len(stage.hub.issued) == 1


async def test_a_rotation_that_waits_for_approval_is_resumed_by_the_next_start(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
        stage.hub.approve = False
        stage.clock.advance(timedelta(days=24))
        stage.timetable.wake("certificate-rotation")
        await until(lambda: len(stage.hub.requests) == 2)
    pending = list(stage.hub.requests)[1]
    async with stage.running():
        await until(lambda: is_available(stage))
        stage.hub.approve_request(pending)
        await until(
            lambda: (
                len(stage.hub.issued) == 2 and stage.hub.session.identity.certificate == stage.hub.requests[pending].certificate
            )
        )
    assert len(stage.hub.requests) == 2


async def test_a_certificate_that_expired_while_the_agent_was_off_is_replaced_by_bootstrap(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
    stage.clock.advance(timedelta(days=40))
    stage.file.write_bytes(stage.hub.bootstrap_kubeconfig())
    async with stage.running():
        await until(lambda: is_available(stage) and len(stage.hub.issued) == 2)
    assert len(stage.hub.clusters) == 1


@pytest.mark.parametrize("key", ["tls.key", "tls.crt", "kubeconfig"])
@pytest.mark.parametrize("damage", [b"", b"garbage"])
@pytest.mark.parametrize("everywhere", [False, True])
async def test_a_damaged_secret_is_repaired(stage: Stage, key: str, damage: bytes, *, everywhere: bool) -> None:
    """Out of the hub's slot; by registering again where that is damaged too."""
    async with stage.running():
        await until(lambda: is_available(stage))
    for place in (OWNER, SLOT) if everywhere else (OWNER,):
        snapshot = await stage.secrets.read(place)
        await stage.secrets.write(place, {**snapshot.contents, key: damage}, snapshot.version)
    async with stage.running():
        await until(lambda: is_available(stage) and not stage.hub.session.over)
        await until(lambda: len(stage.hub.issued) == (2 if everywhere else 1))
    assert len(stage.hub.clusters) == 1
    repaired = (await stage.secrets.read(OWNER)).contents
    assert key_matches(repaired["tls.crt"], repaired["tls.key"])


async def test_an_option_with_another_cluster_name_makes_a_new_registration(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
    stage.options = replace(stage.options, cluster_name="berlin")
    async with stage.running():
        await until(lambda: is_available(stage) and stage.hub.session.cluster == "berlin")


async def test_an_api_server_that_fails_for_long_makes_the_verdict_false_and_back(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
        session = stage.hub.session
        stage.cluster.answered_health = Health(ok=False, status_code=500, detail="etcd is gone")
        stage.timetable.wake("status")
        await until(lambda: session.reports[-1].complete is False)
        assert session.beats[-1] is True
        stage.clock.advance(timedelta(seconds=20))
        stage.timetable.wake("status")
        await until(lambda: session.beats[-1] is False and availability(session) == FALSE)
        stage.cluster.answered_health = Health(ok=True, status_code=200)
        stage.timetable.wake("status")
        await until(lambda: session.beats[-1] is True)


async def test_nothing_is_reported_twice_except_at_a_resync(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
        session = stage.hub.session
        await until(lambda: len(session.beats) > 5)
        told = len(session.reports)
        stage.cluster.set_nodes(await stage.cluster.nodes())
        beats = len(session.beats)
        await until(lambda: len(session.beats) > beats + 5)
        assert len(session.reports) == told
        stage.timetable.wake("status")
        await until(lambda: len(session.reports) == told + 1)


async def test_an_agent_whose_own_clock_says_expired_still_asks_the_hub(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
    stage.hub.calls.clear()
    stage.clock = stage.hub.agent_clock = ManualClock(stage.clock.now() + timedelta(days=60))
    async with stage.running():
        await until(lambda: is_available(stage) and len(stage.hub.sessions) == 2)
    assert set(stage.hub.calls) == {"session"}
    assert len(stage.hub.issued) == 1


async def test_a_deleted_secret_costs_nothing(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
    await stage.secrets.delete(OWNER)
    async with stage.running():
        await until(lambda: is_available(stage) and not stage.hub.session.over)
    assert len(stage.hub.issued) == 1
    assert len(stage.hub.clusters) == 1


async def test_deleted_secrets_cost_a_new_certificate_and_not_the_clusters_name(stage: Stage) -> None:
    async with stage.running():
        await until(lambda: is_available(stage))
    await stage.secrets.delete(OWNER)
    await stage.secrets.delete(SLOT)
    async with stage.running():
        await until(lambda: is_available(stage) and len(stage.hub.issued) == 2)
    assert len(stage.hub.clusters) == 1
