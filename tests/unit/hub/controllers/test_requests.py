"""Requests: approved without a human where the rules say so, signed at once and once, removed when they are over."""

from datetime import timedelta
from typing import Any

import pytest

from hub.controllers import approval, issuance
from hub.controllers.agenda import GIVEN_UP
from hub.controllers.approval import Approval
from hub.controllers.batch import AT_MOST, TOGETHER, Batched
from hub.controllers.cleanup import RequestCleanup
from hub.controllers.issuance import Issuance
from hub.controllers.steadiness import Steadiness
from hub.domain.change import REQUESTS, Key
from hub.domain.request import RequestPhase
from hub.domain.request_end import Ends
from hub.services import certificates
from machinery import pki
from machinery.errors import UnavailableError
from machinery.identity import ClusterName
from tests.unit.hub.controllers.conftest import AGENT, Hub

HOUR = timedelta(hours=1)


async def step(subject: Batched, *names: str) -> None:
    for name in names:
        subject.wants(name)
    while await subject.reconcile(TOGETHER) is not None:
        pass


def issuing(hub: Hub) -> Issuance:
    return Issuance(hub.store, hub.issuer, hub.lifetimes)


async def test_a_first_request_waits_for_a_human_unless_a_rule_matches(hub: Hub) -> None:
    hub.join("edge-1")
    hub.join("other")
    matching, waiting = hub.submit("edge-1"), hub.submit("other")
    await step(Approval(hub.store, ("edge-*",)), matching, waiting)
    assert hub.state(matching).phase is RequestPhase.APPROVED
    assert hub.state(matching).reason == "AutoApprovedByHubCSRApprovingController"
    assert hub.state(waiting).phase is RequestPhase.PENDING


async def test_a_renewal_of_an_accepted_cluster_needs_no_human(hub: Hub) -> None:
    hub.join("c1")
    hub.accept("c1")
    first = hub.submit("c1")
    hub.approve(first)
    await step(issuing(hub), first)
    chain = hub.state(first).certificate
    record = hub.store.transact(certificates.resolve, pki.parse_certificate(chain).serial)
    renewal = hub.submit("c1", record)
    await step(Approval(hub.store, ()), renewal)
    assert hub.state(renewal).phase is RequestPhase.APPROVED


async def test_a_renewal_of_a_denied_cluster_waits(hub: Hub) -> None:
    hub.join("c1")
    hub.accept("c1")
    first = hub.submit("c1")
    hub.approve(first)
    await step(issuing(hub), first)
    record = hub.store.transact(certificates.resolve, pki.parse_certificate(hub.state(first).certificate).serial)
    renewal = hub.submit("c1", record)
    hub.accept("c1", accepted=False)
    await step(Approval(hub.store, ()), renewal)
    assert hub.state(renewal).phase is RequestPhase.PENDING


async def test_an_approved_request_is_signed_with_the_subject_of_its_agent(hub: Hub) -> None:
    hub.join("c1")
    name = hub.submit("c1")
    hub.approve(name)
    await step(issuing(hub), name)
    state = hub.state(name)
    assert state.phase is RequestPhase.ISSUED
    facts = pki.parse_certificate(state.certificate)
    assert facts.subject.common_name == f"system:open-cluster-management:c1:{AGENT}"
    assert pki.is_issued_by(state.certificate, hub.issuer.trust_bundle)
    assert state.recovery_certificate


async def test_one_approval_gives_one_certificate_however_often_it_is_looked_at(hub: Hub) -> None:
    hub.join("c1")
    name = hub.submit("c1")
    hub.approve(name)
    subject = issuing(hub)
    await step(subject, name)
    first = hub.state(name).certificate
    await step(subject, name, name)
    await step(issuing(hub), name)
    assert hub.state(name).certificate == first
    records = hub.store.transact(lambda tx: tx.certificates.of_cluster(ClusterName("c1")))
    assert sorted(record.purpose.value for record in records if record.agent) == ["agent", "recovery"]


async def test_nothing_is_signed_that_was_not_approved(hub: Hub) -> None:
    hub.join("c1")
    name = hub.submit("c1")
    await step(issuing(hub), name)
    assert hub.state(name).phase is RequestPhase.PENDING


async def test_a_batch_is_bounded_and_goes_on_at_once(hub: Hub) -> None:
    names = []
    for number in range(AT_MOST + 1):
        hub.join(f"c{number}")
        names.append(hub.submit(f"c{number}"))
    subject = Approval(hub.store, ("*",))
    for name in names:
        subject.wants(name)
    assert await subject.reconcile(TOGETHER) == timedelta()
    assert await subject.reconcile(TOGETHER) is None
    assert {hub.state(name).phase for name in names} == {RequestPhase.APPROVED}


async def test_a_store_that_is_away_is_not_asked_for_every_name_and_none_is_forgotten(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing arrives any more each question takes as long as the hub has patience."""
    names = []
    for number in range(AT_MOST):
        hub.join(f"c{number}")
        names.append(hub.submit(f"c{number}"))
    subject, asked, run = Approval(hub.store, ("*",)), list[str](), hub.store.run

    async def away(*_args: Any, **_kwargs: Any) -> Any:
        asked.append("transaction")
        raise UnavailableError("the database does not answer")

    monkeypatch.setattr(hub.store, "run", away)
    for name in names:
        subject.wants(name)
    with pytest.raises(UnavailableError):
        await subject.reconcile(TOGETHER)
    assert len(asked) == 1 + GIVEN_UP
    monkeypatch.setattr(hub.store, "run", run)
    assert await subject.reconcile(TOGETHER) is None
    assert {hub.state(name).phase for name in names} == {RequestPhase.APPROVED}


async def test_documents_tell_which_controller_would_act(hub: Hub) -> None:
    hub.join("c1")
    name = hub.submit("c1")

    def look() -> tuple[bool, bool]:
        stored = hub.store.transact(lambda tx: tx.objects.get(REQUESTS, Key("", name)))
        assert stored is not None
        return approval.wanted(stored.document), issuance.wanted(stored.document)

    assert look() == (True, False)
    hub.approve(name)
    assert look() == (False, True)
    await step(issuing(hub), name)
    assert look() == (False, False)


async def test_finished_requests_go_after_an_hour_and_their_records_stay(hub: Hub) -> None:
    hub.join("c1")
    hub.join("c2")
    done, pending = hub.submit("c1"), hub.submit("c2")
    hub.approve(done)
    await step(issuing(hub), done)
    subject = RequestCleanup(hub.store, Ends(HOUR, 24 * HOUR), 24 * HOUR, Steadiness(hub.clock, timedelta()))
    hub.clock.advance(HOUR - timedelta(seconds=1))
    await subject.reconcile("all")
    assert hub.count() == 2
    hub.clock.advance(timedelta(seconds=1))
    await subject.reconcile("all")
    assert hub.count() == 1
    assert hub.state(pending).phase is RequestPhase.PENDING
    assert any(record.agent for record in hub.store.transact(lambda tx: tx.certificates.of_cluster(ClusterName("c1"))))
