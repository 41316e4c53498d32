"""Bodies that real clients sent, recorded in tests/golden, against what a real server made of them."""

import base64
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from machinery.apiserver.messages import MESSAGES
from machinery.apiserver.protobuf import MAGIC, decode
from machinery.errors import BadRequestError
from tests.trials import examples

GOLDEN = Path(__file__).parents[3] / "golden"


def recorded() -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    for file in ("ocm-agent.jsonl", "kubectl.jsonl"):
        for line in (GOLDEN / file).read_text().splitlines():
            entry = json.loads(line)
            for exchange in entry.get("exchanges") or [entry]:
                body = exchange["request"].get("body")
                if isinstance(body, dict) and "base64" in body:
                    yield base64.b64decode(body["base64"]), exchange["response"]["body"]


SILENT = ("Status", "SelfSubjectRulesReview")
"""Answers that do not repeat what was asked."""
RECORDED = [
    (body, answer) for body, answer in recorded() if answer["kind"] not in SILENT and decode(body, MESSAGES) is not None
]
LEASE = next(body for body, answer in RECORDED if answer["kind"] == "Lease")


def contained(part: Any, whole: Any) -> bool:
    """Whether all that `part` says stands in `whole` too."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(contained(value, whole.get(name)) or not value for name, value in part.items())
    return bool(part == whole)


def test_every_kind_that_the_ocm_agent_sends_in_protobuf_was_recorded() -> None:
    assert {answer["kind"] for _, answer in RECORDED} >= {
        "CertificateSigningRequest",
        "Lease",
        "Event",
        "Namespace",
        "ConfigMap",
        "SelfSubjectAccessReview",
        "ClusterRoleBinding",
    }


@pytest.mark.parametrize(("body", "answer"), RECORDED, ids=[answer["kind"] for _, answer in RECORDED])
def test_a_recorded_body_reads_as_what_the_real_server_understood(body: bytes, answer: Mapping[str, Any]) -> None:
    document = decode(body, MESSAGES)
    assert document
    document["metadata"].pop("resourceVersion", None)
    assert contained(document, answer)
    sent = {name for name in answer["metadata"].get("labels", {}) if name != "kubernetes.io/metadata.name"}
    assert set(document["metadata"].get("labels", {})) == sent
    if answer["kind"] != "Namespace":  # its spec and status are the server's work
        assert set(answer.get("spec", {})) <= set(document.get("spec", {})) | {"username", "groups", "uid", "extra"}


def test_a_kind_without_a_table_is_told_apart_from_a_broken_body() -> None:
    unknown = MAGIC + b"\x0a\x0c\x0a\x02v1\x12\x06Endive\x12\x00"
    assert decode(unknown, MESSAGES) is None


def test_empty_values_are_left_out_unless_they_were_set_on_purpose() -> None:
    lease = decode(MAGIC + _unknown("coordination.k8s.io/v1", "Lease", b"\x0a\x02\x0a\x00\x12\x04\x0a\x00\x28\x00"), MESSAGES)
    assert lease
    assert lease["metadata"] == {}
    assert lease["spec"] == {"holderIdentity": "", "leaseTransitions": 0}


def test_negative_numbers_and_times_before_1970_are_read() -> None:
    seconds = b"\x08" + b"\xff" * 9 + b"\x01"
    lease = decode(MAGIC + _unknown("coordination.k8s.io/v1", "Lease", b"\x12\x0d\x22\x0b" + seconds), MESSAGES)
    assert lease
    assert lease["spec"]["renewTime"] == "1969-12-31T23:59:59.000000Z"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        LEASE[:-3],
        MAGIC + b"\x0a",
        MAGIC + b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        MAGIC + b"\x0b",
        MAGIC + b"\x0a\x04\x0a\x02\xff\xfe",
        MAGIC + b"\x10\x07",
    ],
)
def test_a_broken_body_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(BadRequestError, match="protobuf body"):
        decode(body, MESSAGES)


@examples(100, 20_000)
@given(st.binary(max_size=200))
def test_no_bytes_lead_to_anything_but_an_object_or_a_bad_request(noise: bytes) -> None:
    for body in (MAGIC + noise, MAGIC + _unknown("v1", "Secret", noise), MAGIC + _unknown("v1", "Event", noise)):
        try:
            document = decode(body, MESSAGES)
        except BadRequestError:
            continue
        assert document is None or json.dumps(document)


def _unknown(api_version: str, kind: str, raw: bytes) -> bytes:
    meta = _bytes(1, api_version.encode()) + _bytes(2, kind.encode())
    return _bytes(1, meta) + _bytes(2, raw)


def _bytes(number: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])
    return bytes([number << 3 | 2]) + length + content
