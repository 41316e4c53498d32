"""Who comes back with a recovery certificate, and who does not."""

from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.change import MANAGED_CLUSTERS, Key
from hub.domain.request import AddOnRequest, RequestPhase
from hub.services import certificates, clusters, requests
from machinery import pki
from machinery.clock import ManualClock
from machinery.errors import AlreadyExistsError, ForbiddenError, MusterError, NotFoundError
from machinery.identity import AddOnName, AgentId, ClusterName
from tests.fakes.memory_store import MemoryStore
from tests.fakes.registration import LIFETIMES, OPERATOR, Newcomer

OFF = LIFETIMES.agent + timedelta(days=1)


@pytest.fixture
def holder(newcomer: Newcomer, clock: ManualClock) -> CertificateRecord:
    """The recovery certificate of an agent whose own has expired while it was off."""
    newcomer.registered()
    clock.advance(OFF)
    return newcomer.certificate(Purpose.RECOVERY)


def recover(newcomer: Newcomer, holder: CertificateRecord, *, unattended: bool = True, **changed: Any) -> str:
    asked = newcomer.submission(holder, **{"request": newcomer.request(key=pki.generate_key()), **changed})
    return newcomer.store.transact(lambda tx: requests.recover(tx, asked, unattended=unattended))


def phase(newcomer: Newcomer, name: str) -> RequestPhase:
    return newcomer.store.transact(requests.state, name).phase


def test_an_agent_that_was_off_gets_a_new_certificate_without_a_person(newcomer: Newcomer, holder: CertificateRecord) -> None:
    before = newcomer.certificate()
    name = recover(newcomer, holder)
    assert phase(newcomer, name) is RequestPhase.APPROVED
    newcomer.issue(name)
    assert phase(newcomer, name) is RequestPhase.ISSUED
    after = newcomer.certificate()
    assert (after.user, after.cluster, after.agent) == (before.user, before.cluster, before.agent)
    assert after.serial != before.serial
    assert newcomer.certificate(Purpose.RECOVERY).serial != holder.serial


def test_where_the_rule_says_so_a_person_decides(newcomer: Newcomer, holder: CertificateRecord) -> None:
    name = recover(newcomer, holder, unattended=False)
    assert phase(newcomer, name) is RequestPhase.PENDING
    assert newcomer.review(name, "*") is None  # no other rule takes the decision away
    newcomer.approve(name)
    newcomer.issue(name)
    assert phase(newcomer, name) is RequestPhase.ISSUED


def test_the_same_bytes_again_find_the_same_request(newcomer: Newcomer, holder: CertificateRecord) -> None:
    request = newcomer.request(key=pki.generate_key())
    name = recover(newcomer, holder, request=request)
    newcomer.issue(name)
    assert recover(newcomer, holder, request=request) == name
    assert phase(newcomer, name) is RequestPhase.ISSUED


def test_a_request_that_a_person_denied_stays_denied(newcomer: Newcomer, holder: CertificateRecord) -> None:
    request = newcomer.request(key=pki.generate_key())
    name = recover(newcomer, holder, request=request, unattended=False)
    deny = partial(requests.decide, name=name, approve=False, reason="Test", message="no", actor=OPERATOR)
    newcomer.store.transact(deny)
    assert recover(newcomer, holder, request=request) == name
    assert phase(newcomer, name) is RequestPhase.DENIED


def test_an_approval_says_why_and_whose_it_is(newcomer: Newcomer, holder: CertificateRecord) -> None:
    state = newcomer.store.transact(requests.state, recover(newcomer, holder))
    assert state.reason == "RecoveredByItsKey"
    assert "recovery certificate over its previous key" in state.message


def test_a_denied_cluster_has_nothing_to_recover(newcomer: Newcomer, holder: CertificateRecord) -> None:
    newcomer.accept(accepted=False)
    with pytest.raises(ForbiddenError, match="hubctl accept edge"):
        recover(newcomer, holder)


def test_a_deleted_cluster_is_not_found(newcomer: Newcomer, store: MemoryStore, holder: CertificateRecord) -> None:
    store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, newcomer.cluster), OPERATOR))
    assert store.transact(lambda tx: tx.objects.get(MANAGED_CLUSTERS, Key("", "edge"))) is None
    with pytest.raises(NotFoundError, match="bootstrap kubeconfig"):
        recover(newcomer, holder)


@pytest.mark.usefixtures("holder")
def test_a_revoked_recovery_certificate_recovers_nothing(newcomer: Newcomer, store: MemoryStore) -> None:
    store.transact(certificates.revoke_cluster, newcomer.cluster, "Test")
    with pytest.raises(ForbiddenError, match="not revoked"):
        recover(newcomer, newcomer.certificate(Purpose.RECOVERY))


def test_an_expired_recovery_certificate_recovers_nothing(
    newcomer: Newcomer, clock: ManualClock, holder: CertificateRecord
) -> None:
    clock.advance(LIFETIMES.recovery)
    with pytest.raises(ForbiddenError, match="valid"):
        recover(newcomer, holder)


@pytest.mark.parametrize("uid", ["", "uid-2"], ids=["none", "another"])
def test_a_rebuilt_cluster_needs_an_explicit_word(newcomer: Newcomer, holder: CertificateRecord, uid: str) -> None:
    with pytest.raises(AlreadyExistsError, match="rebuilt"):
        recover(newcomer, holder, cluster_uid=uid)


def test_an_agent_that_another_has_replaced_does_not_come_back(
    newcomer: Newcomer, store: MemoryStore, holder: CertificateRecord
) -> None:
    other = Newcomer(store, newcomer.issuer, agent=AgentId("agent-2"))
    name = other.submit(other.bootstrap())
    other.approve(name)
    other.issue(name)
    with pytest.raises(ForbiddenError, match='agent "agent-2" has taken the place of agent "agent-1"'):
        recover(newcomer, holder)


@pytest.mark.parametrize(
    "changed",
    [
        {"cluster": ClusterName("other")},
        {"agent": AgentId("other")},
        {"addon": AddOnRequest(AddOnName("work"), "kubernetes.io/kube-apiserver-client")},
    ],
    ids=["cluster", "agent", "add-on"],
)
def test_a_recovery_certificate_is_for_its_own_agent_alone(
    newcomer: Newcomer, holder: CertificateRecord, changed: dict[str, Any]
) -> None:
    with pytest.raises(ForbiddenError, match="recovers nothing else"):
        recover(newcomer, holder, **changed)


def test_no_other_certificate_recovers_and_a_recovery_certificate_does_nothing_else(
    newcomer: Newcomer, holder: CertificateRecord
) -> None:
    for record in (newcomer.bootstrap(), newcomer.certificate()):
        with pytest.raises(ForbiddenError, match="recovery certificate"):
            recover(newcomer, record)
    with pytest.raises(MusterError, match="cannot request"):
        newcomer.submit(holder)
