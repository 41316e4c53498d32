"""When a stored hub kubeconfig is good: OCM's rows and ours, each with the flaw that is told."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from machinery.identity import AgentId, ClusterName, HubId, SerialNumber, Subject
from spoke.domain.credential import CERTIFICATE, KEY, KUBECONFIG, CertificateView, Flaw, HubEntry, StoredCredential, judge
from spoke.domain.names import Names

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NAMES = Names(ClusterName("berlin"), AgentId("abcde"))
SERIAL = SerialNumber(1)
HUB = HubEntry("hub", "https://hub:6443", b"ca", "hub:8443", HubId("id"))


@dataclass(frozen=True, slots=True)
class View(CertificateView):
    serial: SerialNumber = SERIAL
    subject: Subject = NAMES.subject
    public_key: bytes = b"key"
    not_before: datetime = NOW - timedelta(days=1)
    not_after: datetime = NOW + timedelta(days=1)


GOOD = StoredCredential(frozenset((KUBECONFIG, CERTIFICATE, KEY)), HUB, (View(),), b"key")
OTHER_AGENT = Names(NAMES.cluster, AgentId("zzzzz")).subject
OTHER_CLUSTER = Names(ClusterName("paris"), NAMES.agent).subject


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


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_each_flaw_is_found_and_named(row: Row) -> None:
    finding = judge(row.stored, HUB, NAMES, NOW)
    assert (finding.flaw if finding else None) is row.flaw
    assert row.says in (finding.message if finding else "")


def test_without_a_bootstrap_kubeconfig_the_stored_hub_is_taken_as_it_is() -> None:
    assert judge(replace(GOOD, hub=replace(HUB, server="https://x")), None, NAMES, NOW) is None


def test_only_flaws_of_time_depend_on_whose_clock_it_is() -> None:
    about_time = {row.flaw for row in ROWS if (found := judge(row.stored, HUB, NAMES, NOW)) and found.about_time}
    assert about_time == {Flaw.EXPIRED, Flaw.NOT_YET_VALID}
