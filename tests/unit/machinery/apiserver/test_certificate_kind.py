"""CertificateSigningRequests: who says what, and what is never taken back."""

import base64
from datetime import timedelta
from typing import Any

import pytest

from machinery.apiserver.kinds.certificates import CERTIFICATE_SIGNING_REQUEST, condition_cell
from machinery.apiserver.resource import Row
from machinery.apiserver.storage import Actor, Document
from machinery.apiserver.writes import Write
from machinery.clock import ManualClock
from machinery.errors import BadRequestError, InvalidError
from machinery.identity import Subject
from machinery.pki.keys import generate_key
from machinery.pki.requests import build_request

ALICE = Actor("alice", ("team",), "u1")
PEM = build_request(Subject("cn"), generate_key())
APPROVED = {"type": "Approved", "status": "True", "reason": "Test", "message": ""}
DENIED = {"type": "Denied", "status": "True", "reason": "Test", "message": ""}


def encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def request(**spec: Any) -> dict[str, Any]:
    asked = {"request": encoded(PEM), "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"], **spec}
    kind = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
    return {**kind, "metadata": {"name": "a"}, "spec": {name: value for name, value in asked.items() if value is not None}}


def write(part: str = "", clock: ManualClock | None = None) -> Write:
    chosen = CERTIFICATE_SIGNING_REQUEST.subresource(part) if part else None
    return Write(CERTIFICATE_SIGNING_REQUEST, ALICE, (clock or ManualClock()).now(), part=chosen)


def stored(**status: Any) -> dict[str, Any]:
    new = write().created(request())
    identity = {"uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {**new, "metadata": {**new["metadata"], **identity}, "status": status}


def changed(part: str, old: dict[str, Any], clock: ManualClock | None = None, **status: Any) -> Document:
    after = write(part, clock).changed({**old, "status": status}, old)
    assert after is not None
    return after


def broken(part: str, old: dict[str, Any], **status: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidError) as caught:
        changed(part, old, **status)
    return [(cause.reason, cause.field) for cause in caught.value.causes]


def test_the_server_says_who_asks_whatever_the_request_claims() -> None:
    new = write().created(request(username="root", uid="0", groups=["system:masters"], extra={"a": ["b"]}))

    assert {name: new["spec"].get(name) for name in ("username", "uid", "groups", "extra")} == {
        "username": "alice",
        "uid": "u1",
        "groups": ["team"],
        "extra": None,
    }


def test_a_request_cannot_be_born_approved() -> None:
    new = write().created({**request(), "status": {"conditions": [APPROVED], "certificate": encoded(PEM)}})

    assert new["status"] == {}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"request": None}, "spec.request"),
        ({"request": encoded(b"garbage")}, "spec.request"),
        ({"request": encoded(PEM.replace(b"\nMI", b"\nMX"))}, "spec.request"),
        ({"request": encoded(PEM + PEM)}, "spec.request"),
        ({"signerName": None}, "spec.signerName"),
        ({"signerName": "nodots/x"}, "spec.signerName"),
        ({"signerName": "kubernetes.io/legacy-unknown"}, "spec.signerName"),
        ({"usages": None}, "spec.usages"),
        ({"usages": ["fly"]}, "spec.usages[0]"),
        ({"usages": ["client auth", "client auth"]}, "spec.usages[1]"),
        ({"expirationSeconds": 599}, "spec.expirationSeconds"),
    ],
)
def test_a_request_that_breaks_a_rule_is_refused_by_its_field(spec: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidError) as caught:
        write().created(request(**spec))

    assert [cause.field for cause in caught.value.causes] == [field]


def test_a_request_that_is_no_base64_is_a_bad_request() -> None:
    with pytest.raises(BadRequestError, match="illegal base64"):
        write().created(request(request="%%%"))


def test_spec_and_status_stay_when_the_main_resource_is_written() -> None:
    old = stored(conditions=[APPROVED])

    after = write().changed({**old, "spec": {**old["spec"], "username": "root"}, "status": {}}, old)

    assert after == old


def test_an_approval_gets_its_times() -> None:
    clock = ManualClock()
    old = stored()

    first = dict(changed("approval", old, clock, conditions=[APPROVED]))
    clock.advance(timedelta(minutes=1))
    again = changed("approval", first, clock, conditions=[{**APPROVED, "message": "still"}])

    assert first["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert again["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert again["status"]["conditions"][0]["lastUpdateTime"] == "2026-01-01T00:01:00Z"


def test_a_decision_is_never_taken_back_nor_turned() -> None:
    approved, denied = stored(conditions=[APPROVED]), stored(conditions=[DENIED])

    assert broken("approval", approved, conditions=[]) == [("FieldValueForbidden", "status.conditions")]
    assert ("FieldValueForbidden", "status.conditions") in broken("approval", approved, conditions=[DENIED])
    assert broken("approval", denied, conditions=[DENIED, APPROVED]) == [("FieldValueInvalid", "status.conditions")]


def test_a_decision_has_only_one_status() -> None:
    told = broken("approval", stored(), conditions=[{**APPROVED, "status": "False"}])

    assert told == [("FieldValueNotSupported", "status.conditions[0].status")]


def test_the_signer_cannot_approve() -> None:
    after = changed("status", stored(), conditions=[APPROVED, {"type": "Failed", "status": "True"}])

    assert [condition["type"] for condition in after["status"]["conditions"]] == ["Failed"]


def test_an_approval_writes_no_certificate() -> None:
    after = changed("approval", stored(), conditions=[APPROVED], certificate=encoded(b"x"))

    assert "certificate" not in after["status"]


def test_a_certificate_is_a_certificate_and_is_written_once() -> None:
    issued = stored(conditions=[APPROVED], certificate=encoded(b"-----BEGIN CERTIFICATE-----"))

    assert broken("status", stored(conditions=[APPROVED]), certificate=encoded(b"junk")) == [
        ("FieldValueInvalid", "status.certificate")
    ]
    assert ("FieldValueForbidden", "status.certificate") in broken("status", issued, conditions=[APPROVED])


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({}, "Pending"),
        ({"conditions": [APPROVED]}, "Approved"),
        ({"conditions": [APPROVED], "certificate": "x"}, "Approved,Issued"),
        ({"conditions": [DENIED]}, "Denied"),
        ({"conditions": [APPROVED, {"type": "Failed", "status": "True"}]}, "Approved,Failed"),
    ],
)
def test_the_table_tells_the_state(status: dict[str, Any], shown: str) -> None:
    assert condition_cell(Row({"status": status}, ManualClock().now())) == shown
