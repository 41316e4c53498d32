"""On whose behalf a request for a certificate is stored: what the hub notes of the requester, and what nobody may claim."""

from base64 import b64encode
from datetime import UTC, datetime

import pytest

from hub.apiserver.writepaths import write_paths
from hub.domain.certificate import CertificateRecord, Purpose
from hub.domain.request import SERIAL_EXTRA, SIGNER, USAGES, requester_serial
from machinery import pki
from machinery.apiserver.storage import Actor, GroupResource
from machinery.clock import ManualClock
from machinery.identity import AgentId, ClusterName, SerialNumber, agent_subject
from machinery.product import GROUP_SUFFIX
from tests.fakes.memory_store import MemoryStore

REQUESTS = GroupResource("certificates.k8s.io", "certificatesigningrequests")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBJECT = agent_subject(ClusterName("edge1"), AgentId("a"))


def record(purpose: Purpose) -> CertificateRecord:
    return CertificateRecord(SerialNumber(0xABC), purpose, "somebody", (), NOW, NOW, "", NOW)


@pytest.mark.parametrize(
    ("holder", "noted"),
    [(record(Purpose.AGENT), 0xABC), (record(Purpose.OPERATOR), None), (None, None)],
    ids=("agent", "operator", "nobody"),
)
def test_only_the_certificate_that_an_agent_came_with_is_noted(holder: object, noted: int | None) -> None:
    asked = pki.build_request(SUBJECT, pki.generate_key())
    spec = {"request": b64encode(asked).decode(), "signerName": SIGNER, "usages": list(USAGES)}
    actor = Actor("somebody", extra={SERIAL_EXTRA: ("def",), "other": ("kept",)}, holder=holder)
    path = write_paths(GROUP_SUFFIX)[REQUESTS]

    written = MemoryStore(ManualClock()).transact(
        lambda tx: path.put(tx, {"metadata": {"name": "r"}, "spec": spec}, None, actor)
    )
    document = written.stored.document
    assert requester_serial(document) == noted
    assert document["spec"]["extra"]["other"] == ["kept"]
