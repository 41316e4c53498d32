"""The three patch formats, and protobuf bodies as real clients sent them."""

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, strategies as st

from bench.bodies import YAML as APPLICATION_YAML, read, worst
from hub.api.auditrecords import NO_BODY
from hub.audit.auditor import BODY_LEFT_OUT, body_of
from machinery.apiserver.write.patches import (
    MAX_OPERATIONS,
    OPERATIONS,
    apply_json_patch,
    apply_merge_patch,
    apply_strategic_patch,
)
from machinery.apiserver.write.protobuf import MAGIC, MESSAGES, decode
from machinery.errors import BadRequestError, InvalidError, TooLargeError
from machinery.meta import bounded_json as boundedjson, bounded_yaml as boundedyaml
from machinery.meta.bounded_json import JsonError
from tests.checks import CASE_FILES, PYTHON, check_refusal, check_refusals, refusal
from tests.trials import examples

DOCUMENT: dict[str, Any] = {
    "metadata": {"name": "a", "labels": {"x": "1"}, "finalizers": ["f/1"]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Full", "status": "False"}]},
    "list": [1, 2],
}
KEYS = {"status.conditions": "type"}


def test_merge_patch_merges_maps_replaces_lists_and_removes_with_null() -> None:
    patch = {"metadata": {"labels": {"x": None, "y": "2"}}, "list": [3], "new": {"deep": {"a": None, "b": 1}}}
    patched = apply_merge_patch(DOCUMENT, patch)
    assert (patched["metadata"]["labels"], patched["list"], patched["new"]) == ({"y": "2"}, [3], {"deep": {"b": 1}})
    assert (DOCUMENT["metadata"]["labels"], apply_merge_patch({"a": 1}, {"a": {"b": 2}})) == ({"x": "1"}, {"a": {"b": 2}})
    check_refusals(BadRequestError, partial(apply_merge_patch, DOCUMENT), [([], ""), (1, ""), ("x", ""), (None, "")])


def test_json_patch_is_bounded_and_refused_where_it_does_not_fit() -> None:
    patched = apply_json_patch(
        DOCUMENT, [{"op": "add", "path": "/list/-", "value": 3}, {"op": "remove", "path": "/metadata/labels"}]
    )
    assert (patched["list"], DOCUMENT["list"]) == ([1, 2, 3], [1, 2])
    assert "labels" in DOCUMENT["metadata"]
    doubling = [{"op": "copy", "from": "/a", "path": f"/a/{index}"} for index in range(40)]
    check_refusal(TooLargeError, apply_json_patch, {"a": {"seed": "x" * 1000}}, doubling)
    with pytest.raises(TooLargeError):
        apply_json_patch(DOCUMENT, [{"op": "test", "path": "/list/0", "value": 1}] * (MAX_OPERATIONS + 1))

    rows = yaml.safe_load((CASE_FILES / "patches.yaml").read_text())["refused"]
    check_refusals(InvalidError, partial(apply_json_patch, DOCUMENT), [(operations, "") for operations in rows])
    refused_with = [refusal(InvalidError, apply_json_patch, DOCUMENT, operations) for operations in rows]
    assert not PYTHON.search(" ".join(each.message for each in refused_with if each))
    check_refusals(BadRequestError, partial(apply_json_patch, DOCUMENT), [({"op": "x"}, ""), ("x", ""), ([1], "")])


def test_strategic_patch_merges_by_key_and_obeys_directives() -> None:
    patch = {"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "New", "status": "True"}]}}
    patched = apply_strategic_patch(DOCUMENT, patch, KEYS)
    merged = {each["type"]: each["status"] for each in patched["status"]["conditions"]}
    assert merged == {"Ready": "False", "Full": "False", "New": "True"}
    deleted = apply_strategic_patch(DOCUMENT, {"status": {"conditions": [{"type": "Full", "$patch": "delete"}]}}, KEYS)
    replaced = apply_strategic_patch(
        DOCUMENT, {"status": {"conditions": [{"type": "Only", "status": "True"}, {"$patch": "replace"}]}}, KEYS
    )
    freed = apply_strategic_patch(DOCUMENT, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["f/1"]}}, KEYS)
    whole = apply_strategic_patch(DOCUMENT, {"metadata": {"$patch": "replace", "name": "b"}}, KEYS)
    assert [each["type"] for each in deleted["status"]["conditions"]] == ["Ready"]
    assert (replaced["status"]["conditions"], freed["metadata"]["finalizers"]) == ([{"type": "Only", "status": "True"}], [])
    assert whole["metadata"] == {"name": "b"}

    patched = apply_strategic_patch(DOCUMENT, {"metadata": {"finalizers": ["f/2"]}, "list": [9]}, KEYS)
    assert (patched["metadata"]["finalizers"], patched["list"]) == (["f/1", "f/2"], [9])

    with pytest.raises(BadRequestError, match="no merge key type"):
        apply_strategic_patch(DOCUMENT, {"status": {"conditions": [{"status": "True"}]}}, KEYS)
    rows: list[dict[str, Any]] = [
        {"metadata": {"$deleteFromPrimitiveList/finalizers": 1}},
        {"metadata": {"$deleteFromPrimitiveList/name": ["a"]}},
        {"metadata": {"ownerReferences": [{"uid": "1"}]}},
    ]
    named = {"metadata": {"name": "a", "ownerReferences": ["x"]}}
    check_refusals(BadRequestError, lambda patch: apply_strategic_patch(named, patch, {}), [(patch, "") for patch in rows])


HALF = r"a \u escape is half of a surrogate pair"


def test_half_of_a_surrogate_pair_is_named_and_nothing_else_is_taken_for_one(subtests: pytest.Subtests) -> None:
    halves = (r"\ud800", r"x\udbFFx", r"\uDC00", r"\ud800A", r"\ud83d\ude00\ude00", r"\ud800\ud800\udc00", r"\\\udfff")
    whole = (r"\ud83d\ude00", r"\\ud800", r"\ud83d\ude00\uD83D\uDE00", r"\ue000")
    for text in halves:
        for body in (f'"{text}"', f'{{"a":"{text}"}}', f'{{"{text}":[1]}}'):
            with subtests.test(body), pytest.raises(JsonError) as found:
                boundedjson.decode(body.encode())
            assert str(found.value) == HALF
            notes: dict[str, str] = {}
            assert (body_of(body.encode(), notes), [*notes.values()]) == (NO_BODY, [f"left out: {HALF}"])
    check_refusal(JsonError, boundedjson.decode, b'{"\xbb": 1}', match="it is not UTF-8")
    for text in whole:
        assert boundedjson.decode(f'["{text}"]'.encode()) == [json.loads(f'"{text}"')], text
        check_refusal(JsonError, boundedjson.decode, f'["{text}"'.encode(), match="truncated")


@pytest.mark.parametrize(
    "body", [b"[" * 101 + b"]" * 101, b"[" + b"1," * boundedjson.MOST_VALUES + b"1]"], ids=["deep", "many"]
)
def test_a_body_beyond_the_bounds_of_json_is_left_out_of_an_audit_record(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.audit.auditor.MAX_BODY", len(body))
    notes: dict[str, str] = {}
    assert body_of(body, notes) == NO_BODY
    assert "left out: it " in notes[BODY_LEFT_OUT]


NAMES = st.sampled_from(
    ["metadata", "finalizers", "ownerReferences", "uid", "status", "conditions", "type", "$patch", "a", "-", "0"]
    + [f"$deleteFromPrimitiveList/{name}" for name in ("finalizers", "conditions", "a")]
)
SCALARS = st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False, allow_infinity=False)
LEAVES = SCALARS | st.sampled_from(["replace", "delete", "merge", "x"])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=12
)
METADATA = st.fixed_dictionaries({}, optional={"finalizers": VALUES, "ownerReferences": VALUES})
DOCUMENTS = st.fixed_dictionaries({"metadata": METADATA}, optional={"status": VALUES, "a": VALUES})
PATCHES = st.fixed_dictionaries({"metadata": VALUES}, optional={"status": VALUES, "a": VALUES}) | VALUES
PATHS = st.lists(NAMES, max_size=4).map(lambda parts: "".join(f"/{part}" for part in parts)) | VALUES
STEPS = st.fixed_dictionaries(
    {}, optional={"op": st.sampled_from([*OPERATIONS, "append", 1]), "path": PATHS, "from": PATHS, "value": VALUES}
)


@examples(test=150, soak=20_000)
@given(DOCUMENTS, PATCHES, st.lists(STEPS, max_size=4) | VALUES)
def test_any_patch_gives_an_object_or_a_refusal(document: dict[str, Any], patch: Any, operations: Any) -> None:
    for patched in (
        partial(apply_merge_patch, document, patch),
        partial(apply_strategic_patch, document, patch, KEYS),
        partial(apply_json_patch, document, operations),
    ):
        refused_with = refusal((BadRequestError, InvalidError), patched)
        assert refused_with is not None or isinstance(patched(), dict)
        assert not PYTHON.search(refused_with.message if refused_with else ""), refused_with


GOLDEN = Path(__file__).parents[3] / "golden"


def recorded() -> Iterator[tuple[bytes, Mapping[str, Any]]]:
    for file in ("ocm-agent.jsonl", "kubectl.jsonl"):
        for line in (GOLDEN / file).read_text().splitlines():
            entry = json.loads(line)
            for exchange in entry.get("exchanges") or [entry]:
                body = exchange["request"].get("body")
                if isinstance(body, dict) and "base64" in body:
                    yield base64.b64decode(body["base64"]), exchange["response"]["body"]


SILENT = ("Status", "SelfSubjectRulesReview")  # answers that do not repeat what was asked
RECORDED = [
    (body, answer) for body, answer in recorded() if answer["kind"] not in SILENT and decode(body, MESSAGES) is not None
]
LEASE = next(body for body, answer in RECORDED if answer["kind"] == "Lease")


def contained(part: Any, whole: Any) -> bool:
    """Whether all that `part` says stands in `whole` too."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(contained(value, whole.get(name)) or not value for name, value in part.items())
    return bool(part == whole)


def test_recorded_bodies_decode_to_what_the_real_server_understood() -> None:
    kinds = {"CertificateSigningRequest", "Lease", "Event", "Namespace", "ConfigMap"}
    assert {answer["kind"] for _, answer in RECORDED} >= kinds | {"SelfSubjectAccessReview", "ClusterRoleBinding"}
    for body, answer in RECORDED:
        document = decode(body, MESSAGES)
        assert document, (body, answer)
        document["metadata"].pop("resourceVersion", None)
        assert contained(document, answer), (body, answer)
        sent = {name for name in answer["metadata"].get("labels", {}) if name != "kubernetes.io/metadata.name"}
        assert set(document["metadata"].get("labels", {})) == sent
        if answer["kind"] != "Namespace":  # its spec and status are the server's work
            assert set(answer.get("spec", {})) <= set(document.get("spec", {})) | {"username", "groups", "uid", "extra"}


def test_protobuf_zero_values_and_early_times_are_decoded_and_broken_bodies_refused() -> None:
    def lease_of(raw: bytes) -> Any:
        return decode(MAGIC + _unknown("coordination.k8s.io/v1", "Lease", raw), MESSAGES)

    assert decode(MAGIC + b"\x0a\x0c\x0a\x02v1\x12\x06Endive\x12\x00", MESSAGES) is None
    lease = lease_of(b"\x0a\x02\x0a\x00\x12\x04\x0a\x00\x28\x00")
    assert (lease["metadata"], lease["spec"]) == ({}, {"holderIdentity": "", "leaseTransitions": 0})
    early = b"\x08" + b"\xff" * 9 + b"\x01"
    assert lease_of(b"\x12\x0d\x22\x0b" + early)["spec"]["renewTime"] == "1969-12-31T23:59:59.000000Z"

    broken = (b"\x0a", b"\x0a" + b"\xff" * 11, b"\x0b", b"\x0a\x04\x0a\x02\xff\xfe", b"\x10\x07")
    bodies = (b"", b"{}", LEASE[:-3], *(MAGIC + rest for rest in broken))
    check_refusals(BadRequestError, lambda body: decode(body, MESSAGES), [(body, "protobuf body") for body in bodies])


@examples(100, 20_000)
@given(st.binary(max_size=200))
def test_no_bytes_lead_to_anything_but_an_object_or_a_bad_request(noise: bytes) -> None:
    for body in (MAGIC + noise, MAGIC + _unknown("v1", "Secret", noise), MAGIC + _unknown("v1", "Event", noise)):
        try:
            document = decode(body, MESSAGES)
        except BadRequestError:
            continue
        assert document is None or json.dumps(document)


async def test_worst_bodies_of_every_format_are_read_within_bounds_or_refused_early(monkeypatch: pytest.MonkeyPatch) -> None:
    events = Counter[str]()

    def counted(text: str, Loader: Any) -> Iterator[Any]:  # noqa: N803 - as PyYAML calls it
        for event in parse(text, Loader=Loader):
            events["read"] += 1
            yield event

    parse = yaml.parse
    monkeypatch.setattr(yaml, "parse", counted)
    for name, media, body, accepted in worst():
        events.clear()
        assert await read(media, body) == accepted, name
        assert events["read"] < 2 * boundedyaml.REQUEST.nodes, name  # collections have an event at each end
        assert media != APPLICATION_YAML or len(body) <= boundedyaml.REQUEST.size or not accepted, name
    assert boundedyaml.load("- 1:30\n- 2026-01-01\n- !!str 1\n- 0x1F\n- yes") == ["1:30", "2026-01-01", "1", 31, True]
    with pytest.raises(boundedyaml.YamlError, match="more than 2000000 values"):
        boundedyaml.load("a0: &a0 x\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 9}]\n" for i in range(1, 9)))


def test_written_yaml_quotes_text_that_kubectl_reads_as_a_boolean_or_a_number() -> None:
    texts, plain = (
        ("y", "N", "08", "089", "1e3", "12e-5", "0o17", "0X1F", "-.5_0", "+1.", "no", "null"),
        ("yy", "1e", "v1", "1.2.3"),
    )
    written = boundedyaml.write({text: text for text in (*texts, *plain)})
    assert written.splitlines() == [*(f"'{text}': '{text}'" for text in texts), *(f"{text}: {text}" for text in plain)]


def _unknown(api_version: str, kind: str, raw: bytes) -> bytes:
    return _bytes(1, _bytes(1, api_version.encode()) + _bytes(2, kind.encode())) + _bytes(2, raw)


def _bytes(number: int, content: bytes) -> bytes:
    size = len(content)
    length = bytes([size]) if size < 128 else bytes([size & 0x7F | 0x80, size >> 7])
    return bytes([number << 3 | 2]) + length + content
