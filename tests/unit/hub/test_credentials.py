"""Bootstrap credentials at work: uses held and spent, what binds them, what they bestow, how they end."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from hub.domain import cluster as clusters_rules
from hub.domain import document as doc
from hub.domain.attestation import FAILED, AttestationError, Attested, Binding, Demand
from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.change import MANAGED_CLUSTERS, Key
from hub.domain.cluster import Joining
from hub.domain.clusterset import LABEL
from hub.domain.credential import Bounds, CredentialUse, Tally
from hub.domain.request import RequestPhase
from hub.services import clusters, credentials, requests
from machinery import conditions
from machinery.clock import ManualClock
from machinery.errors import ForbiddenError, NotFoundError
from machinery.identity import AgentId, ClusterName, CredentialId
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import EDGE, OPERATOR, Newcomer


def other(newcomer: Newcomer, name: str = "other", agent: str = "agent-1") -> Newcomer:
    return Newcomer(newcomer.store, cluster=ClusterName(name), agent=AgentId(agent), uid=f"uid-of-{name}")


def credential_of(requester: CertificateRecord) -> CredentialId:
    assert requester.credential is not None
    return requester.credential


def tally(newcomer: Newcomer, requester: CertificateRecord) -> Tally:
    return newcomer.store.transact(lambda tx: tx.credentials.tally(credential_of(requester)))


def uses(newcomer: Newcomer, requester: CertificateRecord) -> list[CredentialUse]:
    return list(newcomer.store.transact(lambda tx: tx.credentials.uses(credential_of(requester))))


def issued(newcomer: Newcomer, requester: CertificateRecord) -> RequestPhase:
    name = newcomer.submit(requester)
    newcomer.approve(name)
    newcomer.issue(name)
    return newcomer.store.transact(requests.state, name).phase


def labels(newcomer: Newcomer, name: str = "edge") -> dict[str, str]:
    stored = newcomer.store.transact(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", name)))
    assert stored is not None
    return dict(doc.labels(stored.document))


# Uses.


def test_a_use_is_spent_when_a_certificate_is_issued_and_says_on_what(newcomer: Newcomer, clock: ManualClock) -> None:
    requester = newcomer.bootstrap(uses=2)
    newcomer.join(requester)
    assert tally(newcomer, requester) == Tally(names=1)
    name = newcomer.submit(requester)
    assert tally(newcomer, requester) == Tally(held=1)
    held_at = clock.now()
    clock.advance(timedelta(minutes=1))
    newcomer.approve(name)
    assert tally(newcomer, requester) == Tally(held=1)
    newcomer.issue(name)
    serial = newcomer.certificate().serial
    credential = credential_of(requester)
    assert uses(newcomer, requester) == [
        CredentialUse(credential, EDGE, newcomer.agent, name, held_at, clock.now(), serial),
    ]


def test_an_agent_that_retries_or_comes_with_another_key_spends_one_use(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap(uses=1)
    for _ in range(3):
        newcomer.join(requester)
        assert issued(newcomer, requester) is RequestPhase.ISSUED
        newcomer.key = Newcomer(newcomer.store).key
    assert tally(newcomer, requester) == Tally(issued=1)


def test_a_renewal_spends_no_use_though_it_names_the_credential(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap(uses=1)
    assert issued(newcomer, requester) is RequestPhase.ISSUED
    mine = newcomer.certificate()
    newcomer.key = Newcomer(newcomer.store).key
    assert issued(newcomer, mine) is RequestPhase.ISSUED
    renewed = newcomer.certificate()
    assert (renewed.credential, renewed.serial != mine.serial) == (requester.credential, True)
    (use,) = uses(newcomer, requester)
    assert use.serial == mine.serial


def test_another_agent_of_the_same_cluster_is_another_use(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap(uses=1, cluster=EDGE)
    assert issued(newcomer, requester) is RequestPhase.ISSUED
    second = Newcomer(newcomer.store, agent=AgentId("agent-2"))
    with pytest.raises(ForbiddenError, match="is used up: its only use was spent on other agents"):
        second.submit(requester)
    with pytest.raises(ForbiddenError, match="used up"):
        second.join(requester)


def test_one_pending_request_more_than_there_are_uses_is_told_at_once(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap(uses=2)
    waiting = [other(newcomer, f"c{number}").submit(requester) for number in range(2)]
    with pytest.raises(ForbiddenError, match="of 2, 0 spent and 2 held for others that wait for a decision"):
        newcomer.submit(requester)
    newcomer.store.transact(
        lambda tx: requests.decide(tx, waiting[0], approve=False, reason="Test", message="no", actor=OPERATOR)
    )
    assert newcomer.submit(requester), "a request that is denied gives its use back"


def test_a_request_that_is_gone_gives_its_use_back(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap(uses=1)
    name = other(newcomer).submit(requester)
    with pytest.raises(ForbiddenError, match="no use left"):
        newcomer.submit(requester)
    newcomer.store.transact(lambda tx: requests.remove(tx, requests.find(tx, name), OPERATOR))
    assert issued(newcomer, requester) is RequestPhase.ISSUED


def test_a_deleted_cluster_gives_back_what_its_name_held_but_not_what_it_spent(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap(uses=1)
    typo = other(newcomer, "typo")
    typo.join(requester)
    with pytest.raises(ForbiddenError, match="no use left"):
        newcomer.join(requester)
    newcomer.store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, ClusterName("typo")), OPERATOR))
    newcomer.join(requester)
    assert issued(newcomer, requester) is RequestPhase.ISSUED
    newcomer.store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE), OPERATOR))
    with pytest.raises(ForbiddenError, match="used up"):
        typo.join(requester)


def test_requests_of_before_uses_were_counted_are_not_signed_beyond_them(newcomer: Newcomer) -> None:
    """Two were taken in, by a release that counted names alone; one use is there."""
    requester = newcomer.bootstrap(uses=1, cluster=EDGE)
    second = Newcomer(newcomer.store, agent=AgentId("agent-2"))
    names = []
    for one in (newcomer, second):
        names.append(one.submit(requester))
        newcomer.store.state.uses.clear()
        one.approve(names[-1])
    for name in names:
        newcomer.issue(name)
    states = [newcomer.store.transact(requests.state, name) for name in names]
    assert [state.phase for state in states] == [RequestPhase.ISSUED, RequestPhase.FAILED]
    assert "used up" in states[1].message


# What binds them.


def test_a_pattern_admits_what_fits_it_as_a_whole(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap(uses=5, bounds=Bounds(patterns=("lab-*",)))
    fitting = other(newcomer, "lab-1")
    fitting.join(requester)
    assert issued(fitting, requester) is RequestPhase.ISSUED
    for act in (newcomer.join, newcomer.submit):
        with pytest.raises(ForbiddenError, match=r'whose name fits lab-\*, and "edge" does not'):
            act(requester)


def test_a_set_is_where_the_cluster_goes_whatever_it_says(newcomer: Newcomer) -> None:
    bounds = Bounds(cluster_set="shops", labels={"env": "prod"})
    requester = newcomer.bootstrap(bounds=bounds)
    said = {LABEL: "banks", "env": "dev", "mine": "1"}
    joining = Joining(EDGE, newcomer.uid, newcomer.agent, labels=said, credential=requester.credential)
    newcomer.store.transact(clusters.ensure, joining, requester.user)
    assert labels(newcomer) == {LABEL: "shops", "env": "prod", "mine": "1"}


def test_labels_are_bestowed_once_so_that_an_operator_may_change_them(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap(bounds=Bounds(labels={"env": "prod"}))
    newcomer.join(requester)
    newcomer.store.transact(
        lambda tx: clusters.put(
            tx,
            doc.with_metadata(clusters.find(tx, EDGE).document, labels={"env": "test"}),
            clusters.find(tx, EDGE),
            OPERATOR,
        )
    )
    newcomer.join(requester)
    assert labels(newcomer) == {"env": "test"}


def entered(newcomer: Newcomer, **changed: Any) -> None:
    document = {"metadata": {"name": "edge", **changed}, "spec": {}}
    newcomer.store.transact(clusters.put, document, None, OPERATOR)


def test_a_cluster_entered_by_hand_gets_the_set_and_the_labels(newcomer: Newcomer) -> None:
    entered(newcomer, labels={"env": "dev", "floor": "2"})
    newcomer.join(newcomer.bootstrap(bounds=Bounds(cluster_set="shops", labels={"env": "prod"})))
    assert labels(newcomer) == {LABEL: "shops", "env": "prod", "floor": "2"}


@pytest.mark.parametrize(
    "changed",
    [
        {"labels": {LABEL: "banks"}},
        {"annotations": {clusters_rules.CLUSTER_UID: "uid-1"}},
        {"labels": {LABEL: "default"}, "annotations": {clusters_rules.CLUSTER_UID: "uid-1"}},
    ],
)
def test_a_set_reaches_no_cluster_of_another(newcomer: Newcomer, changed: dict[str, Any]) -> None:
    entered(newcomer, **changed)
    requester = newcomer.bootstrap(bounds=Bounds(cluster_set="shops"))
    for act in (newcomer.join, newcomer.submit):
        with pytest.raises(ForbiddenError, match='of the set "shops", and cluster "edge" '):
            act(requester)


def test_a_token_bestows_as_a_certificate_does(newcomer: Newcomer) -> None:
    terms = credentials.Terms(None, 1, timedelta(hours=1), Bounds(("ed*",), "shops", {"env": "prod"}))
    record, _ = newcomer.store.transact(credentials.create_token, terms, OPERATOR)
    said = {"metadata": {"name": "edge", "labels": {"env": "dev"}}, "spec": {}}
    newcomer.store.transact(clusters.put, said, None, f"system:bootstrap:{record.id}")
    assert labels(newcomer) == {LABEL: "shops", "env": "prod"}
    with pytest.raises(ForbiddenError, match="whose name fits"):
        newcomer.store.transact(clusters.put, {"metadata": {"name": "lab"}, "spec": {}}, None, f"system:bootstrap:{record.id}")


# How they end.


def test_revoking_tells_who_and_why_and_denies_what_waits(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap()
    waiting = newcomer.submit(requester)
    record = newcomer.store.transact(credentials.revoke, credential_of(requester), OPERATOR, "leaked")
    assert (record.revoked_by, record.revoked_reason, record.revoked_at is not None) == (OPERATOR, "leaked", True)
    state = newcomer.store.transact(requests.state, waiting)
    assert (state.phase, state.reason) == (RequestPhase.DENIED, "CredentialRevoked")
    again = newcomer.store.transact(credentials.revoke, credential_of(requester), "bob", "twice")
    assert again == record


@pytest.mark.parametrize("agents", [False, True])
def test_revoking_takes_the_agents_along_when_told(newcomer: Newcomer, *, agents: bool) -> None:
    requester = newcomer.bootstrap()
    assert issued(newcomer, requester) is RequestPhase.ISSUED
    foreign = other(newcomer)
    assert issued(foreign, newcomer.bootstrap()) is RequestPhase.ISSUED
    newcomer.store.transact(lambda tx: credentials.revoke(tx, credential_of(requester), OPERATOR, agents=agents))
    for purpose in (Purpose.AGENT, Purpose.RECOVERY):
        assert (newcomer.certificate(purpose).revoked_at is not None) is agents
        assert foreign.certificate(purpose).revoked_at is None


def test_nobody_revokes_what_is_not_there(store: MemoryStore) -> None:
    with pytest.raises(NotFoundError, match='bootstrap credential "nobody" not found'):
        store.transact(credentials.revoke, CredentialId("nobody"))


def test_ended_credentials_are_forgotten_after_a_while(newcomer: Newcomer, clock: ManualClock) -> None:
    requester, standing = newcomer.bootstrap(), newcomer.bootstrap(lifetime=timedelta(days=3))
    issued(newcomer, requester)
    clock.advance(timedelta(days=1))
    assert newcomer.store.transact(credentials.forget_ended, timedelta(days=1)) == 0
    clock.advance(timedelta(hours=1, seconds=1))
    assert newcomer.store.transact(credentials.forget_ended, timedelta(days=1)) == 1
    left = newcomer.store.transact(lambda tx: [record.id for record in tx.credentials.all()])
    assert left == [standing.credential]
    assert newcomer.certificate().credential == requester.credential, "certificates keep where they came from"


# Whom a name is bound to.


PROVEN = Attested("https://edge", "system:serviceaccount:agents:spoke", "k1")


def enter(newcomer: Newcomer, requester: CertificateRecord, proven: Attested | None) -> None:
    joining = Joining(newcomer.cluster, newcomer.uid, newcomer.agent, credential=requester.credential, attested=proven)
    newcomer.store.transact(clusters.ensure, joining, requester.user)
    newcomer.submit(requester, attested=proven)


def test_a_name_is_bound_to_the_issuer_that_its_cluster_came_from(newcomer: Newcomer, clock: ManualClock) -> None:
    demanding = newcomer.bootstrap(bounds=Bounds(attestation=Demand("https://edge")))
    with pytest.raises(AttestationError) as caught:
        enter(newcomer, demanding, None)
    assert "demands an attestation, and there is none" in caught.value.why
    enter(newcomer, demanding, PROVEN)
    bound = newcomer.store.transact(lambda tx: tx.bindings.of(EDGE))
    assert bound == Binding(EDGE, PROVEN.issuer, PROVEN.subject, PROVEN.key, clock.now())
    condition = conditions.find(doc.conditions(newcomer.store.transact(clusters.find, EDGE).document), "ManagedClusterAttested")
    assert condition is not None
    assert (condition.status, "of the issuer https://edge" in condition.message) == ("True", True)
    enter(newcomer, demanding, PROVEN)


@pytest.mark.parametrize(
    ("proven", "why"),
    [
        (None, 'cluster "edge" is bound to issuer https://edge, and there is no attestation'),
        (replace(PROVEN, issuer="https://other"), "of https://other"),
        (replace(PROVEN, subject="system:serviceaccount:agents:other"), "system:serviceaccount:agents:other"),
        (replace(PROVEN, key="k2", pinned=frozenset(("k2",))), "a key of issuer https://edge that is not among those given"),
    ],
)
def test_another_issuer_has_no_way_in_under_a_bound_name(newcomer: Newcomer, proven: Attested | None, why: str) -> None:
    """Whatever the credential demands: one without a demand, and a token at the other door, are no way around."""
    enter(newcomer, newcomer.bootstrap(bounds=Bounds(attestation=Demand("https://edge"))), PROVEN)
    free = newcomer.bootstrap()
    with pytest.raises(AttestationError) as caught:
        enter(newcomer, free, proven)
    assert (why in caught.value.why, caught.value.message) == (True, FAILED), caught.value.why
    with pytest.raises(AttestationError):
        newcomer.submit(free, attested=proven)


def test_a_key_that_is_added_to_those_given_by_hand_may_sign(newcomer: Newcomer) -> None:
    enter(newcomer, newcomer.bootstrap(), PROVEN)
    enter(newcomer, newcomer.bootstrap(), replace(PROVEN, key="k2", pinned=frozenset(("k1", "k2"))))


def test_a_name_is_free_again_once_its_cluster_is_deleted(newcomer: Newcomer) -> None:
    requester = newcomer.bootstrap()
    joining = Joining(EDGE, newcomer.uid, newcomer.agent, credential=requester.credential, attested=PROVEN)
    newcomer.store.transact(clusters.ensure, joining, requester.user)
    newcomer.store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE), OPERATOR))
    enter(newcomer, newcomer.bootstrap(), None)
