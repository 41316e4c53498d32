"""Why a cluster is not Available: each cause is brought about by the use cases that bring it about, and then found."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import delete

from hub.api.clusterdiagnoses import Diagnosis, DiagnosisFinding, FindingState
from hub.api.hubreplicas import LOST_AFTER, Replica
from hub.api.liveness import Beat, Brake, encode_brake
from hub.api.managedclusters import cluster as rules
from hub.api.managedclusters.availability import Departure
from hub.api.managedclusters.cluster import JoinRequest
from hub.api.meta import document as doc
from hub.api.meta.change import ADDONS, REQUESTS
from hub.api.revocations import RevocationTarget
from hub.ports import Transaction
from hub.registry import clusterdiagnoses as diagnosing
from hub.registry import namespaces
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.hubreplicas import service as replicas
from hub.registry.hubreplicas.service import Opened
from hub.registry.liveness import brake, heartbeats
from hub.registry.managedclusters import service as clocksync
from hub.registry.multihub import owners
from hub.registry.revocations import revoke
from hub.store import schema
from machinery.election.lock import Candidate
from machinery.identity import ClusterName, HubId
from machinery.meta import conditions
from machinery.meta.conditions import Condition
from machinery.meta.objects import Key
from machinery.runtime.clock import ManualClock
from tests.checks import present
from tests.fakes.registration import AGENT, EDGE, OPERATOR, Newcomer

EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
REPLICA = Replica("hub-0", "here", "i1", "1", "grpc", "https", EPOCH, EPOCH, ready=True)
LEASE = timedelta(seconds=60)
WINDOW = timedelta(seconds=1)


@pytest.fixture
def world(newcomer: Newcomer, clock: ManualClock) -> "World":
    return World(newcomer, clock)


class World:
    """A hub with a leader, and a cluster that goes its way into it as far as a test wants."""

    def __init__(self, newcomer: Newcomer, clock: ManualClock) -> None:
        self.newcomer = newcomer
        self.clock = clock
        self.store = newcomer.store
        self.store.transact(namespaces.ensure_standing)
        self.store.transact(replicas.begin, REPLICA)
        self.store.transact(lambda tx: tx.leaders.take(None, Candidate("hub-0", "i1"), timedelta(seconds=15)))

    def diagnose(self, name: ClusterName = EDGE) -> Diagnosis:
        return self.store.transact(diagnosing.of_cluster, name)

    def found(self, step: str) -> DiagnosisFinding:
        return next(each for each in self.diagnose().findings if each.step == step)

    def cause(self, name: ClusterName = EDGE) -> tuple[str, str]:
        cause = present(self.diagnose(name).cause)
        assert cause.advice, "whoever is told what is wrong is told what to do"
        return cause.reason, cause.said

    def shows(self, reason: str, words: str) -> None:
        found, said = self.cause()
        assert (found, words in said) == (reason, True), said

    def connect(self) -> None:
        self.store.transact(replicas.open_session, Opened(EDGE, AGENT, "s1", "v1", "hub-0"))

    def beat(self, *, available: bool = True) -> None:
        beat = Beat(EDGE, timedelta(), available=available)
        self.store.transact(heartbeats.flush, [beat])
        told = rules.AVAILABLE if available else rules.UNAVAILABLE
        self.store.transact(clocksync.set_condition, EDGE, told, "agent")

    def live(self) -> None:
        self.newcomer.registered()
        self.store.transact(clocksync.set_condition, EDGE, rules.ACCEPTED, "hub")
        self.connect()
        self.beat()

    def pass_time(self, time: timedelta) -> None:
        self.clock.advance(time)
        self.store.transact(replicas.beat, REPLICA)

    def write(self, change: Callable[[Any], dict[str, Any]]) -> None:
        def write(tx: Transaction) -> None:
            stored = clocksync.find(tx, EDGE)
            clocksync.put(tx, change(stored.document), stored, OPERATOR)

        self.store.transact(write)


def test_cluster_that_is_well_is_ok_at_every_step(world: World) -> None:
    world.live()
    found = world.diagnose()
    assert (found.is_well, found.cause, {each.state for each in found.findings}) == (True, None, {FindingState.OK})
    steps = ["hub", "cluster", "acceptance", "certificate", "session", "beats", "API server"]
    assert [each.step for each in found.findings] == steps


def test_agent_that_has_not_come_and_its_bootstrap_credential(world: World) -> None:
    """The best of several credentials counts."""
    world.newcomer.credential(cluster=ClusterName("other"), uses=1, lifetime=None)
    world.shows("NoBootstrapCredential", 'no cluster "edge"')
    assert [each.step for each in world.diagnose().findings] == ["hub", "cluster"], "nothing else is looked at"
    revoked, _ = world.newcomer.credential(cluster=EDGE, uses=1, lifetime=None)
    world.store.transact(credentials.revoke, revoked.id, OPERATOR)
    assert world.cause()[0] == "BootstrapCredentialRevoked"
    requester = world.newcomer.bootstrap(uses=1)
    other = Newcomer(world.store, cluster=ClusterName("far"))
    other.join(requester)
    other.accept()
    other.issued(requester)
    assert world.cause()[0] == "BootstrapCredentialUsedUp"
    world.newcomer.credential(cluster=EDGE, uses=1, lifetime=timedelta(hours=1))
    assert world.cause()[0] == "NotComeYet"
    world.pass_time(timedelta(hours=1))
    assert world.cause()[0] == "BootstrapCredentialExpired"
    record, _ = world.newcomer.credential(cluster=EDGE, uses=1, lifetime=None)
    reason, said = world.cause()
    assert (reason, record.id in said, world.diagnose().findings[-1].state) == ("NotComeYet", True, FindingState.WAITING)


def test_cluster_that_an_operator_entered_and_whose_agent_never_asked(world: World) -> None:
    entered = rules.joining_document(JoinRequest(EDGE, ""), LEASE)
    world.store.transact(lambda tx: clocksync.put(tx, doc.with_spec(entered, hubAcceptsClient=True), None, OPERATOR))
    world.shows("NoBootstrapCredential", "has asked for no certificate")


def test_request_that_waits_for_decisions_or_its_signature_or_fails(world: World) -> None:
    requester = world.newcomer.bootstrap()
    world.newcomer.join(requester)
    name = world.newcomer.submit(requester)
    found = world.diagnose()
    waiting = [(each.reason, each.advice) for each in found.findings if each.state is FindingState.WAITING]
    assert waiting == [("NotAccepted", "hubctl accept edge"), ("NotApproved", f"hubctl certificate approve {name}")]
    world.newcomer.accept()
    assert world.cause()[0] == "NotApproved"
    world.newcomer.approve(name)
    assert world.found("request").state is FindingState.WAITING, "signing takes a moment"
    world.pass_time(timedelta(minutes=1))
    assert (world.cause()[0], world.found("request").state) == ("NotSigned", FindingState.BROKEN)

    def fail(tx: Transaction) -> None:
        stored = present(tx.objects.get(REQUESTS, Key("", name)))
        failed = Condition("Failed", "True", "SignerValidationFailure", "usages")
        tx.objects.put(REQUESTS, doc.with_status_condition(stored.document, failed, tx.now), stored, "hub")

    world.store.transact(fail)
    assert world.cause()[0] == "RequestFailed"


def test_denied_request_denied_cluster_and_revoked_certificate(world: World) -> None:
    name = world.newcomer.submit(world.newcomer.accepted())
    deny = lambda tx: requests.decide(tx, name, approve=False, reason="NotOurs", message="who is this", actor=OPERATOR)  # noqa: E731 - one line
    world.store.transact(deny)
    world.shows("RequestDenied", "NotOurs: who is this")
    world.live()
    world.newcomer.accept(accepted=False)
    assert world.cause()[0] == "Denied"
    assert not any(each.step == "beats" for each in world.diagnose().findings)
    world.newcomer.accept()
    world.store.transact(revoke, RevocationTarget(cluster=EDGE), "KeyCompromise", OPERATOR)
    world.shows("Revoked", "KeyCompromise")
    assert world.diagnose().findings[-1].step == "certificate", "consequences are not listed beside it"


def test_a_certificate_that_ended_while_the_agent_was_off(world: World) -> None:
    world.live()
    world.pass_time(timedelta(days=28))
    assert world.found("certificate").reason == "EndsSoon"
    world.pass_time(timedelta(days=3))
    assert world.cause()[0] == "ExpiredRecoverable"
    world.pass_time(timedelta(days=60))
    assert world.cause()[0] == "Expired"


def test_sessions_of_an_agent(world: World) -> None:
    world.newcomer.registered()
    found = world.diagnose()
    assert [each.reason for each in found.findings if each.state is FindingState.BROKEN] == ["NoSession", "NeverBeat"]
    assert all(each.state is FindingState.OK or each.advice for each in found.findings), "each says what to do"
    world.connect()
    world.store.transact(heartbeats.flush, [Beat(EDGE, timedelta(), available=None)])
    assert world.cause()[0] == "NotToldYet", "the agent has given no verdict"
    world.beat()
    world.store.transact(replicas.close_session, EDGE, AGENT, "s1")
    assert (world.cause()[0], world.diagnose().is_well) == ("NoSession", False)
    world.connect()
    second = Opened(EDGE, type(AGENT)("agent-2"), "s2", "v1", "hub-0")
    world.store.transact(replicas.open_session, second)
    assert world.cause()[0] == "TwoAgents"


def test_agent_that_uses_the_kubernetes_api_needs_no_session(world: World) -> None:
    world.newcomer.registered()
    world.beat()
    assert (world.found("session").reason, world.diagnose().is_well) == ("NoneNeeded", True)


def test_a_replica_that_is_lost_with_its_sessions(world: World) -> None:
    world.live()
    world.clock.advance(LOST_AFTER * 2)
    other = replace(REPLICA, name="hub-1", home="there")
    world.store.transact(replicas.begin, other)
    lock = world.store.state.leader
    world.store.transact(lambda tx: tx.leaders.take(lock, Candidate("hub-1", "i2"), timedelta(seconds=15)))
    assert world.cause()[0] == "ReplicaLost"


def test_a_hub_that_nobody_leads(world: World) -> None:
    world.live()
    world.clock.advance(timedelta(minutes=1))
    world.shows("NoLeader", "hub-0")
    world.store.transact(replicas.beat, REPLICA)
    assert world.found("hub").state is FindingState.OK, "whoever serves alone renews nothing"
    world.store.execute(delete(schema.leaders))
    assert world.cause()[0] == "NoLeader"


def test_beats_that_come_late_and_then_not_at_all(world: World) -> None:
    world.live()
    world.pass_time(2 * LEASE)
    assert (world.found("beats").reason, world.diagnose().cause) == ("Late", None)
    world.pass_time(4 * LEASE)
    assert world.cause()[0] == "Silent"
    world.store.transact(heartbeats.expire, EDGE, window=WINDOW, since=EPOCH, actor="hub")
    assert world.diagnose().available == conditions.UNKNOWN


def test_unavailable_api_server_then_another_hub_then_deletion(world: World) -> None:
    world.live()
    world.beat(available=False)
    assert world.cause() == ("ManagedClusterKubeAPIServerUnavailable", "The kube-apiserver is not ok")
    departure = Departure(EDGE, HubId("b2f1d5a0-0000-4000-8000-000000000002"), 1)
    world.store.transact(owners.bid_farewell, departure, 0, "agent")
    world.shows("ReportsElsewhere", "b2f1d5a0")
    world.write(lambda document: doc.with_metadata(document, finalizers=["example.org/waits"]))
    world.store.transact(lambda tx: clocksync.remove(tx, clocksync.find(tx, EDGE), OPERATOR))
    world.shows("Deleting", "example.org/waits")


def test_warnings_leave_a_cluster_well(world: World) -> None:
    world.live()
    world.store.transact(clocksync.note_duplicate, JoinRequest(EDGE, "uid-2"), "agent")
    assert (world.found("one of a name").state, world.diagnose().is_well) == (FindingState.WARNING, True)
    assert "--rebuilt" in world.found("one of a name").advice
    for skew in (timedelta(hours=1), -timedelta(hours=1)):
        world.store.transact(clocksync.note_clock_skew, EDGE, skew, timedelta(), "hub")
        assert (world.found("clock").state, world.diagnose().is_well) == (FindingState.WARNING, True), skew
        assert "NTP" in world.found("clock").advice
    for name, status in (("well", "True"), ("ill", "False")):
        addon = {
            "apiVersion": "addon.open-cluster-management.io/v1beta1",
            "kind": "ManagedClusterAddOn",
            "metadata": {"name": name, "namespace": EDGE, "uid": name},
            "status": {"conditions": [{"type": "Available", "status": status, "reason": "R", "message": ""}]},
        }
        world.store.transact(lambda tx, addon: tx.objects.put(ADDONS, addon, None, "op"), addon)
    assert (world.found("add-ons").state, world.found("add-ons").said) == (FindingState.WARNING, "not Available: ill")
    held = Brake(since=world.clock.now(), silent=20, fleet=50)
    world.store.transact(lambda tx: tx.facts.set(brake.FACT, encode_brake(held)))
    for _ in range(3):
        world.beat(available=False)
        world.beat()
    assert [world.found(step).reason for step in ("brake", "flaps")] == ["BrakeHolds", "Flaps"]
    assert world.diagnose().is_well
