"""Which certificate opens what: a table, and names that only begin alike."""

from datetime import UTC, datetime

import pytest

from hub.access import check_operator, check_registration, check_request_view, session_holder
from hub.domain.certificate import CertificateRecord, Purpose
from machinery.errors import ForbiddenError
from machinery.identity import AgentId, ClusterName, SerialNumber

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def record(purpose: Purpose, cluster: str | None = "edge1", agent: str | None = "a") -> CertificateRecord:
    return CertificateRecord(
        serial=SerialNumber(1),
        purpose=purpose,
        user="user",
        groups=(),
        not_before=NOW,
        not_after=NOW,
        key_hash="",
        issued_at=NOW,
        cluster=None if cluster is None else ClusterName(cluster),
        agent=None if agent is None else AgentId(agent),
    )


@pytest.mark.parametrize("purpose", list(Purpose))
@pytest.mark.parametrize(
    ("bound", "asked", "opens"),
    [("edge1", "edge1", True), ("edge1", "edge2", False), ("edge1", "edge11", False), ("edge11", "edge1", False)],
)
def test_a_certificate_registers_exactly_its_own_cluster(purpose: Purpose, bound: str, asked: str, opens: bool) -> None:  # noqa: FBT001 - a table
    allowed = opens and purpose in (Purpose.BOOTSTRAP, Purpose.AGENT)
    if allowed:
        check_registration(record(purpose, bound), ClusterName(asked))
    else:
        with pytest.raises(ForbiddenError):
            check_registration(record(purpose, bound), ClusterName(asked))


def test_only_a_bootstrap_credential_may_be_bound_to_no_cluster() -> None:
    check_registration(record(Purpose.BOOTSTRAP, None), ClusterName("any"))
    with pytest.raises(ForbiddenError):
        check_registration(record(Purpose.AGENT, None), ClusterName("any"))


@pytest.mark.parametrize("purpose", list(Purpose))
def test_only_an_agent_opens_a_session_and_only_its_own(purpose: Purpose) -> None:
    if purpose is Purpose.AGENT:
        assert session_holder(record(purpose)) == ("edge1", "a")
    else:
        with pytest.raises(ForbiddenError, match=purpose):
            session_holder(record(purpose))


@pytest.mark.parametrize("purpose", list(Purpose))
def test_only_an_operator_operates(purpose: Purpose) -> None:
    if purpose is Purpose.OPERATOR:
        check_operator(record(purpose))
    else:
        with pytest.raises(ForbiddenError):
            check_operator(record(purpose))


def test_a_request_is_followed_by_its_requester_or_its_cluster() -> None:
    check_request_view(record(Purpose.BOOTSTRAP, None), requester="user", cluster="edge9")
    check_request_view(record(Purpose.AGENT, "edge1"), requester="another", cluster="edge1")
    for stranger in (record(Purpose.AGENT, "edge2"), record(Purpose.OPERATOR, "edge1"), record(Purpose.BOOTSTRAP, None)):
        with pytest.raises(ForbiddenError):
            check_request_view(stranger, requester="another", cluster="edge1")
    with pytest.raises(ForbiddenError):
        check_request_view(record(Purpose.AGENT, ""), requester="another", cluster="")
