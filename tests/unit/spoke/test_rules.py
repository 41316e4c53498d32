"""Names, the way to a certificate, renewal instants, stored credentials, add-on leases, and what the agent reports."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from machinery.identity import AgentId, CertificateSubject, ClusterName, HubId, SerialNumber
from machinery.meta.conditions import FALSE, TRUE
from spoke.domain.credential import CERTIFICATE, KEY, KUBECONFIG, CertificateView, Flaw, HubEntry, StoredCredential, judge
from spoke.domain.names import AgentNames
from spoke.domain.report import NodeResources, ReportedClaim
from spoke.domain.schedule import BACKDATE, EARLIEST, LATEST, rotate_at, threshold
from spoke.domain.status import (
    Availability,
    ClusterClaimRules,
    add,
    allocatable_of,
    capacity_of,
    exposed_claims,
    truncated_claims,
)
from tests.checks import check_refusals, check_results

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NAMES = AgentNames(ClusterName("berlin"), AgentId("abcde"))


def test_renewal_threshold_is_drawn_once_per_serial_and_spread_over_the_window() -> None:
    drawn = [threshold(SerialNumber(number)) for number in range(1000)]
    assert all(LATEST < value <= EARLIEST for value in drawn)
    assert drawn == [threshold(SerialNumber(number)) for number in range(1000)]
    assert max(drawn) - min(drawn) > 0.045
    assert abs(sum(drawn) / 1000 - 0.225) < 0.002


def test_certificate_is_due_in_the_last_quarter_of_its_life_however_short() -> None:
    for life in (timedelta(days=30), timedelta(hours=1), timedelta(seconds=20)):
        due = rotate_at(SerialNumber(5), NOW - BACKDATE, NOW + life)
        assert NOW + life * 0.75 <= due <= NOW + life * 0.80, life
    assert NOW < rotate_at(SerialNumber(5), NOW, NOW + timedelta(minutes=2)) < NOW + timedelta(minutes=2)


SERIAL = SerialNumber(1)
HUB = HubEntry("hub", "https://hub:6443", b"ca", "hub:8443", HubId("id"))


@dataclass(frozen=True, slots=True)
class View(CertificateView):
    serial: SerialNumber = SERIAL
    subject: CertificateSubject = NAMES.subject
    public_key: bytes = b"key"
    not_before: datetime = NOW - timedelta(days=1)
    not_after: datetime = NOW + timedelta(days=1)


GOOD = StoredCredential(frozenset((KUBECONFIG, CERTIFICATE, KEY)), HUB, (View(),), b"key")
OTHER_AGENT = AgentNames(NAMES.cluster, AgentId("zzzzz")).subject
OTHER_CLUSTER = AgentNames(ClusterName("paris"), NAMES.agent).subject


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    stored: StoredCredential
    flaw: Flaw | None
    says: str = ""


ROWS = [
    Row("good", GOOD, None),
    Row("nothing", StoredCredential(frozenset()), Flaw.ABSENT),
    Row("names alone", StoredCredential(frozenset(("cluster-name",))), Flaw.ABSENT),
    Row("no kubeconfig", replace(GOOD, present=frozenset((CERTIFICATE, KEY))), Flaw.INCOMPLETE, "kubeconfig missing"),
    Row("no key", replace(GOOD, present=frozenset((CERTIFICATE, KUBECONFIG))), Flaw.INCOMPLETE, "tls.key missing"),
    Row("no certificate", replace(GOOD, present=frozenset((KEY, KUBECONFIG))), Flaw.INCOMPLETE, "tls.crt missing"),
    Row("garbled kubeconfig", replace(GOOD, hub=None), Flaw.GARBLED, "kubeconfig"),
    Row("garbled key", replace(GOOD, public_key=None), Flaw.GARBLED, "tls.key"),
    Row("garbled certificate", replace(GOOD, chain=None), Flaw.GARBLED, "tls.crt"),
    Row("empty chain", replace(GOOD, chain=()), Flaw.GARBLED, "tls.crt"),
    Row("cluster entry", replace(GOOD, hub=replace(HUB, cluster="x")), Flaw.OTHER_HUB, "cluster entry's name"),
    Row("server", replace(GOOD, hub=replace(HUB, server="https://x")), Flaw.OTHER_HUB, "server"),
    Row("grpc server", replace(GOOD, hub=replace(HUB, grpc_server="x:1")), Flaw.OTHER_HUB, "gRPC server"),
    Row("hub id", replace(GOOD, hub=replace(HUB, hub_id=HubId("x"))), Flaw.OTHER_HUB, "hub id"),
    Row("proxy", replace(GOOD, hub=replace(HUB, proxy_url="http://p")), Flaw.OTHER_HUB, "proxy"),
    Row("ca", replace(GOOD, hub=replace(HUB, ca=b"x")), Flaw.OTHER_HUB, "certificate authority"),
    Row("grpc ca", replace(GOOD, hub=replace(HUB, grpc_ca=b"x")), Flaw.OTHER_HUB, "certificate authority"),
    Row("other agent", replace(GOOD, chain=(View(subject=OTHER_AGENT),)), Flaw.OTHER_SUBJECT, "zzzzz"),
    Row("other cluster", replace(GOOD, chain=(View(subject=OTHER_CLUSTER),)), Flaw.OTHER_SUBJECT, "paris"),
    Row("other key", replace(GOOD, public_key=b"x"), Flaw.WRONG_KEY),
    Row("expired", replace(GOOD, chain=(View(not_after=NOW - timedelta(seconds=1)),)), Flaw.EXPIRED, "2026-11-20T23:59:59Z"),
    Row("last instant", replace(GOOD, chain=(View(not_after=NOW),)), None),
    Row("first instant", replace(GOOD, chain=(View(not_before=NOW),)), None),
    Row("not begun", replace(GOOD, chain=(View(not_before=NOW + timedelta(seconds=1)),)), Flaw.NOT_YET_VALID),
    Row("expired issuer", replace(GOOD, chain=(View(), View(not_after=NOW - timedelta(days=1)))), Flaw.EXPIRED),
]


def test_each_flaw_of_a_stored_credential_is_found_and_named() -> None:
    findings = [(row, judge(row.stored, HUB, NAMES, NOW)) for row in ROWS]
    wrong = [
        (row.name, found)
        for row, found in findings
        if (found.flaw if found else None) is not row.flaw or row.says not in (found.message if found else "")
    ]
    assert wrong == []
    assert {row.flaw for row, found in findings if found and found.about_time} == {Flaw.EXPIRED, Flaw.NOT_YET_VALID}
    other = replace(GOOD, hub=replace(HUB, server="https://x"))
    assert judge(other, None, NAMES, NOW) is None, "without a bootstrap kubeconfig the stored hub is taken as it is"


def test_quantities_add_up_exactly() -> None:
    rows = [("4", "4", "8"), ("500m", "500m", "1"), ("1", "250m", "1250m"), ("8Gi", "8Gi", "16Gi"), ("0", "8Gi", "8Gi")]
    rows += [("16384Mi", "1Ki", "16777217Ki"), ("1Ki", "1", "1025"), ("2k", "1", "2001"), ("1e3", "1", "1001")]
    rows += [("1.5Gi", "512Mi", "2Gi"), ("100n", "1", "1000000100n"), ("1023Ei", "1", "1179438699212804456449")]
    check_results(add, rows)
    wrong = ("", "x", "1Gb", "1 Gi", "--1", "1e9999", "Ki")
    check_refusals(ValueError, add, [(text, "1", "not a Kubernetes quantity") for text in wrong])


def test_capacity_counts_all_nodes_and_allocatable_only_schedulable_ones() -> None:
    nodes = [
        NodeResources("a", {"cpu": "4", "memory": "8Gi"}, {"cpu": "4"}, schedulable=True),
        NodeResources("b", {"cpu": "3500m", "memory": "8Gi"}, {"cpu": "3500m"}, schedulable=False),
    ]
    assert capacity_of(nodes) == {"cpu": "7500m", "memory": "16Gi"}
    assert allocatable_of(nodes) == {"cpu": "4"}


def failed(state: Availability, at: float) -> Availability:
    return state.observed(ok=False, status_code=500, detail="boom", began=at, ended=at)


def well(state: Availability, at: float) -> Availability:
    return state.observed(ok=True, status_code=200, detail="ok", began=at, ended=at)


def test_cluster_is_unavailable_after_twenty_seconds_of_failure_and_not_before() -> None:
    state = well(Availability(), 0)
    for tenth in range(199):
        state = failed(state, 100 + tenth / 10)
    assert state.verdict is True, "however often a short failure is seen"
    assert not state.settled
    assert state.condition is not None
    assert state.condition.status == TRUE
    state = failed(failed(well(Availability(), 0), 100), 120)
    assert state.verdict is False
    assert state.settled
    assert state.condition is not None
    assert (state.condition.status, state.condition.message) == (FALSE, "The kube-apiserver is not ok, status code: 500, boom")
    state = failed(well(failed(well(Availability(), 0), 100), 110), 125)
    assert [state.verdict, failed(state, 144).verdict, failed(state, 145).verdict] == [True, True, False], "a success resets it"
    assert failed(failed(Availability(), 0), 19.9).verdict is None, "it never answered"
    slow = Availability().observed(ok=False, status_code=None, detail="", began=0, ended=5)
    slow = slow.observed(ok=False, status_code=None, detail="", began=15, ended=20)
    assert slow.verdict is False, "counted from the start of the first probe"


def test_claims_are_reserved_first_sorted_and_custom_ones_are_cut() -> None:
    names = ["z", "b", "a", "product.open-cluster-management.io", "id.k8s.io", "id-test.k8s.io", "x.mine.io"]
    rules = ClusterClaimRules(max_custom=2, reserved_suffixes=("mine.io",))
    claims = [ReportedClaim(name, name) for name in names]
    exposed = [claim.name for claim in exposed_claims(claims, rules)]
    assert exposed == ["id.k8s.io", "product.open-cluster-management.io", "x.mine.io", "a", "b"]
    assert truncated_claims(claims, rules) == 2
