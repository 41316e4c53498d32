"""Structural schemas, and the rules of the shared kinds, roles, bindings and certificate requests."""

import base64
import re
from collections.abc import Mapping
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

from machinery.apiserver.kinds.certificates import CERTIFICATE_SIGNING_REQUEST, condition_cell
from machinery.apiserver.kinds.core import CONFIG_MAP, LARGEST, LEASE, NAMESPACE, SECRET, SERVICE_ACCOUNT
from machinery.apiserver.kinds.declaration import OPEN, TEXT, KindManifests, listing, record
from machinery.apiserver.kinds.rbac import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING
from machinery.apiserver.resource import Resource, Subresource, TableRow
from machinery.apiserver.storage import Actor
from machinery.apiserver.write.schema import added, defaulted, pruned, violations
from machinery.apiserver.write.writes import Write
from machinery.errors import BadRequestError, InvalidError
from machinery.identity import CertificateSubject
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time
from machinery.pki.keys import generate_key
from machinery.pki.requests import build_request
from machinery.runtime.clock import ManualClock
from tests.checks import CASE_FILES, check_refusal, check_refusals, present, refusal

SCHEMA = record(
    spec=record(
        "",
        ("name",),
        name={**TEXT, "minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"},
        size={"type": "integer", "format": "int32", "minimum": 1, "maximum": 9, "default": 3},
        ratio={"type": "number"},
        mode={**TEXT, "enum": ["a", "b"]},
        when={**TEXT, "format": "date-time", "nullable": True},
        exact={**TEXT, "format": "micro-time"},
        data={"type": "object", "additionalProperties": {**TEXT, "format": "byte"}},
        either={"x-kubernetes-int-or-string": True, "pattern": "^[0-9]+$"},
        open=OPEN,
        parts={**listing(record(id=TEXT, n={"type": "integer", "default": 0}), "id"), "maxItems": 2},
    )
)


def document(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": {"name": "ab", **spec}}


def test_unknown_fields_are_pruned_and_absent_ones_have_defaults() -> None:
    given = document(nope=1, open={"any": {"thing": 1}}, parts=[{"id": "a", "odd": 1}], either={"a": 1})
    given["metadata"]["nome"] = "x"
    given["extra"] = {}
    kept, unknown = pruned(SCHEMA, given)
    assert unknown == ["extra", "metadata.nome", "spec.nope", "spec.parts[0].odd"]
    assert (kept["spec"]["open"], kept["spec"]["parts"]) == ({"any": {"thing": 1}}, [{"id": "a"}])
    assert kept["metadata"] == {"name": "x"}
    given = document(nope=1)
    pruned(SCHEMA, given)
    assert given["spec"]["nope"] == 1

    complete = document(size=5, parts=[{"id": "a", "n": 1}])
    assert defaulted(SCHEMA, document(parts=[{"id": "a"}]))["spec"] == {"name": "ab", "size": 3, "parts": [{"id": "a", "n": 0}]}
    assert defaulted(SCHEMA, complete) is complete


def test_broken_rule_is_reported_once_with_its_field() -> None:
    rows: dict[str, list[dict[str, Any]]] = {
        "FieldValueTypeInvalid": [
            *({"name": 1}, {"name": None}, {"size": True}, {"size": 1.5}, {"ratio": "1"}, {"when": "yesterday"}),
            *({"when": "2026-11-21"}, {"exact": "2026-11-21T00:00:00"}, {"either": []}, {"when": "2026-11-21T07:51Z"}),
            *({"when": "2026-11-21T07:51:08+0100"}, {"exact": "2026-11-21T07:51:08Z"}, {"when": "0001-01-01T00:00:00+14:00"}),
        ],
        "FieldValueInvalid": [
            *({"name": "a"}, {"name": "AB"}, {"name": "ab\n"}, {"size": 0}, {"size": 10}, {"either": "abc"}, {"either": "1\n"}),
        ],
        "FieldValueTooLong": [{"name": "abcde"}],
        "FieldValueNotSupported": [{"mode": "c"}],
        "FieldValueTooMany": [{"parts": [{"id": "a"}, {"id": "b"}, {"id": "c"}]}],
    }
    cases = [(spec, reason, f"spec.{next(iter(spec))}") for reason, specs in rows.items() for spec in specs]
    texts = ("%%%", "YWJj=", "YWJj====", "YQ", "YQ=", "YQ==YQ==")
    cases += [({"data": {"k": text}}, "FieldValueTypeInvalid", "spec.data.k") for text in texts]
    cases.append(({"parts": [{"id": "a"}, {"id": "a"}]}, "FieldValueDuplicate", "spec.parts[1]"))
    for spec, reason, field in cases:
        assert [(cause.reason, cause.field) for cause in violations(SCHEMA, document(**spec))] == [(reason, field)]

    assert [cause.field for cause in violations(SCHEMA, {"spec": {}})] == ["spec.name"]

    fine: list[dict[str, Any]] = [{"when": None}, {"either": 1}, {"either": "1"}, {"ratio": 1}, {"data": {"k": "YQ=="}}]
    fine += [{"when": "2026-11-21T00:00:00+01:00"}, {"exact": "2026-11-21T00:00:00.000001Z"}]
    assert [spec for spec in fine if violations(SCHEMA, document(**spec)) != []] == []


NOW = ManualClock().now()
ENVELOPE = {"apiVersion": "example.com/v1", "kind": "Thing"}
METADATA = {"name": "a", "uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
SHORT = {**TEXT, "maxLength": 3}
SPEC = record(
    name=SHORT,
    number={"type": "integer"},
    names={**listing(SHORT), "maxItems": 1},
    map={"type": "object", "additionalProperties": SHORT},
    needed=record("", ("name",), name=SHORT),
)
THING_SCHEMA = record(spec=SPEC, status=record(word=TEXT))
COUNTED = Subresource("status", lambda new, old, *_: {**old, "status": {"word": str(new["spec"]["number"] + 1)}})
NAMES: dict[str, Any] = {"group": "example.com", "version": "v1", "name": "things", "kind": "Thing"}
THING = Resource(**NAMES, schema=THING_SCHEMA, subresources=(COUNTED,))


def writing(resource: Resource, part: Subresource | None = None) -> Write:
    return Write(resource, Actor("admin"), NOW, part=part)


def thing(**spec: Any) -> dict[str, Any]:
    return {**ENVELOPE, "metadata": METADATA, "spec": spec}


def fields(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """The warnings of a write from one to the other."""
    causes = added(violations(THING_SCHEMA, new), new, lambda: old, lambda each: violations(THING_SCHEMA, each))
    return [cause.field for cause in causes]


def test_existing_violation_is_tolerated_but_not_a_worse_one() -> None:
    rows: list[Mapping[str, Any]] = [{"name": "long!"}, {"names": ["a", "long!"]}, {"map": {"." * 5_000: "long!"}}]
    for spec in [*rows, {"needed": {}}, {"map": {"a.b[0].c": "long!", "a": "b", "": "long!"}}]:
        assert violations(THING_SCHEMA, thing(**spec)), spec
        assert fields(thing(**spec, number=2), thing(**spec, number=1)) == [], spec

    rows_2: list[tuple[Mapping[str, Any], Mapping[str, Any], str]] = [
        ({"name": "long!"}, {"name": "longer!"}, "spec.name"),
        ({"names": ["long!"]}, {"names": ["longer!"]}, "spec.names[0]"),
        ({"map": {"a.b[0].c": "long!"}}, {"map": {"a.b[0].c": "longer!"}}, "spec.map.a.b[0].c"),
        ({"needed": {"name": "long!"}}, {"needed": {"name": "longer!"}}, "spec.needed.name"),
    ]
    for before, after, field in rows_2:
        assert fields(thing(**after), thing(**before)) == [field], (before, after)

    old = {**thing(number="one"), "status": {"word": "1"}}
    with pytest.raises(InvalidError, match=r"spec\.number in body must be of type integer"):
        writing(THING, THING.subresources[0]).changed({**old, "status": {"word": "2"}}, old)
    assert writing(THING).changed(thing(number=1), old), "who mends it is refused nothing"
    old = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": METADATA}
    old = {**old, "spec": {"leaseDurationSeconds": "60"}}
    with pytest.raises(BadRequestError, match="cannot be handled as a Lease"):
        writing(LEASE).changed({**old, "metadata": {**METADATA, "labels": {"a": "b"}}}, old)


def created(resource: Resource, **parts: Any) -> dict[str, Any]:
    envelope = {"apiVersion": resource.api_version(), "kind": resource.kind, "metadata": {"name": "a"}}
    return identified(writing(resource).created({**envelope, **parts}))


def identified(new: Document) -> dict[str, Any]:
    return {**new, "metadata": {**METADATA, **new["metadata"]}}


def test_manifest_has_the_columns_and_the_shared_parts_of_a_kind(tmp_path: Path) -> None:
    (tmp_path / "shared.yaml").write_text("Part: {type: string, description: A part.}")
    (tmp_path / "kinds.yaml").write_text("""
        things.x.io:
          kind: Thing
          version: v1
          schema: {type: object, properties: {a: {$ref: Part}, b: {type: array, items: {$ref: Part, description: Another.}}}}
          columns:
            - {name: Value, path: spec.a, absent: <none>}
            - {name: Values, list: spec.b, separator: "; "}
            - {name: Since, age: spec.since, absent: <never>}
            - {name: Ready, condition: Ready}
            - {name: Counted}
    """)
    declared = KindManifests(tmp_path / "shared.yaml", tmp_path / "kinds.yaml")
    thing = declared.resource("things.x.io", {"Counted": lambda row: len(row.document["spec"])}, verbs=("get",))
    assert (thing.name, thing.api_version(), thing.kind, thing.verbs) == ("things", "x.io/v1", "Thing", ("get",))
    properties = declared.schema("things.x.io")["properties"]
    assert properties["a"] == {"type": "string", "description": "A part."}
    assert properties["b"] == {"type": "array", "items": {"type": "string", "description": "Another."}}
    now = ManualClock().now()
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    since = format_time(now - timedelta(minutes=5))
    rows: list[tuple[dict[str, Any], list[Any]]] = [
        ({"spec": {"a": 0, "b": [1, 2], "since": since}, "status": ready}, [0, "1; 2", "5m", "True", 3]),
        ({"spec": {}}, ["<none>", "", "<never>", None, 0]),
    ]
    for part, shown in rows:
        assert [column.cell(TableRow(part, now)) for column in thing.columns or ()] == shown


def test_shared_kinds_have_the_rules_of_kubernetes() -> None:
    secret = created(SECRET, data={"a": "MQ=="}, stringData={"b": "2"})
    assert (secret["data"], "stringData" in secret) == ({"a": "MQ==", "b": "Mg=="}, False)
    secret = created(SECRET, data=None, stringData={"a": "1"}, type=None, immutable=None)
    assert (secret["data"], secret["type"], "immutable" in secret) == ({"a": "MQ=="}, "Opaque", False)
    assert created(LEASE, spec={"holderIdentity": None, "renewTime": None})["spec"] == {}
    for resource in (SECRET, CONFIG_MAP):
        old = created(resource, immutable=True, data={"a": "MQ=="})
        check_refusal(InvalidError, writing(resource).changed, {**old, "data": {"a": "Mg=="}}, old, match="immutable")
        check_refusal(InvalidError, writing(resource).changed, {**old, "immutable": False}, old, match="immutable")

    terminating = present(writing(NAMESPACE).deleted(created(NAMESPACE)))
    assert (terminating["status"]["phase"], "deletionTimestamp" in terminating["metadata"]) == ("Terminating", True)
    assert writing(NAMESPACE).deleted(terminating) == terminating
    check_refusal(InvalidError, created, NAMESPACE, metadata={"name": "a.b"}, match="RFC 1123 label")

    specs = [({"leaseDurationSeconds": 0}, ""), ({"leaseTransitions": -1}, "")]
    check_refusals(InvalidError, lambda spec: created(LEASE, spec=spec), specs)
    check_refusal(BadRequestError, created, LEASE, spec={"leaseDurationSeconds": "60"}, match="cannot be handled as a Lease")
    for wrong in ({"imagePullSecrets": [{"name": 7}]}, {"secrets": [{"name": "a", "namespace": 7}]}):
        check_refusal(BadRequestError, created, SERVICE_ACCOUNT, **wrong, match="cannot be handled as a ServiceAccount")
    old = created(LEASE)
    with pytest.raises(InvalidError, match="must be specified for an update"):
        writing(LEASE).changed({**old, "metadata": {"name": "a"}}, old)
    assert writing(CONFIG_MAP).changed(created(CONFIG_MAP), created(CONFIG_MAP)) is not None

    large = {"a": "x" * (LARGEST + 1)}
    rows: list[tuple[Resource, str, dict[str, str], str]] = [(CONFIG_MAP, "data", large, "Too long")]
    rows += [(SECRET, "stringData", large, "Too long")]
    keys = product((SECRET, CONFIG_MAP), ("", ".", "..", "a/b", "x" * 254))
    rows += [(resource, "data", {key: "MQ=="}, "a valid config key") for resource, key in keys]
    check_refusals(InvalidError, lambda resource, part, data: created(resource, **{part: data}), rows)


RULE = {"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}
REFERENCE = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "viewer"}
BOB = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "bob"}


def rbac_object(resource: Resource, document: Mapping[str, Any], name: str = "x") -> Document:
    namespace = {"namespace": "home"} if resource.namespaced else {}
    return writing(resource).created({"metadata": {"name": name, **namespace}, **document})


def test_role_or_binding_that_breaks_a_rule_is_refused() -> None:
    kinds = {resource.kind: resource for resource in (CLUSTER_ROLE, ROLE, CLUSTER_ROLE_BINDING, ROLE_BINDING)}
    rows = yaml.safe_load((CASE_FILES / "roles.yaml").read_text())
    check_refusals(
        InvalidError, rbac_object, [(kinds[kind], document, re.escape(refused_with)) for kind, document, refused_with in rows]
    )


def test_role_names_and_binding_defaults_are_those_of_kubernetes() -> None:
    cases = ("system:node", "Upper", "a b", "x.y:z")
    assert [name for name in cases if rbac_object(CLUSTER_ROLE, {"rules": [RULE]}, name)["metadata"]["name"] != name] == []
    check_refusals(
        InvalidError, rbac_object, [(CLUSTER_ROLE, {"rules": [RULE]}, name, "") for name in (".", "..", "a/b", "a%b")]
    )

    robot = {"kind": "ServiceAccount", "name": "robot", "namespace": "home"}
    subjects = [{"kind": "User", "name": "bob"}, robot]
    binding = rbac_object(ROLE_BINDING, {"roleRef": {"kind": "ClusterRole", "name": "viewer"}, "subjects": subjects})
    assert (binding["roleRef"], binding["subjects"]) == (REFERENCE, [BOB, robot])
    subjects = [BOB, robot, {**BOB, "name": "eve"}, {**BOB, "kind": "Group", "name": "team"}]
    row = TableRow({"metadata": {}, "roleRef": REFERENCE, "subjects": subjects}, NOW)
    columns = {column.name: column for column in ROLE_BINDING.columns or ()}
    shown = {name: column.cell(row) for name, column in columns.items() if name != "Age"}
    assert shown == {"Role": "ClusterRole/viewer", "Users": "bob, eve", "Groups": "team", "ServiceAccounts": "home/robot"}
    assert [name for name, column in columns.items() if column.priority == 0] == ["Role", "Age"]


PEM = build_request(CertificateSubject("cn"), generate_key())
APPROVED = {"type": "Approved", "status": "True", "reason": "Test", "message": ""}
DENIED = {"type": "Denied", "status": "True", "reason": "Test", "message": ""}


def encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def request(**spec: Any) -> dict[str, Any]:
    asked = {"request": encoded(PEM), "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"], **spec}
    kind = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
    return {**kind, "metadata": {"name": "a"}, "spec": {name: value for name, value in asked.items() if value is not None}}


def csr_write(part: str = "", clock: ManualClock | None = None) -> Write:
    chosen = CERTIFICATE_SIGNING_REQUEST.subresource(part) if part else None
    return Write(CERTIFICATE_SIGNING_REQUEST, Actor("alice", ("team",), "u1"), (clock or ManualClock()).now(), part=chosen)


def stored(**status: Any) -> dict[str, Any]:
    return {**identified(csr_write().created(request())), "status": status}


def changed(part: str, old: dict[str, Any], clock: ManualClock | None = None, **status: Any) -> Document:
    return present(csr_write(part, clock).changed({**old, "status": status}, old))


def broken(part: str, old: dict[str, Any], **status: Any) -> list[tuple[str, str]]:
    return [(cause.reason, cause.field) for cause in present(refusal(InvalidError, changed, part, old, **status)).causes]


def test_request_that_breaks_a_rule_is_refused_by_its_field() -> None:
    rows: list[tuple[dict[str, Any], str]] = [
        *(({"request": None}, "spec.request"), ({"request": encoded(PEM.replace(b"\nMI", b"\nMX"))}, "spec.request")),
        *(({"request": encoded(PEM + PEM)}, "spec.request"), ({"signerName": None}, "spec.signerName")),
        *(({"signerName": "nosignature"}, "spec.signerName"), ({"usages": []}, "spec.usages")),
        *(({"usages": ["fly", "client auth"]}, "spec.usages[0]"), ({"expirationSeconds": 10}, "spec.expirationSeconds")),
        ({"signerName": "kubernetes.io/legacy-unknown"}, "spec.signerName"),
        ({"usages": ["client auth", "client auth"]}, "spec.usages[1]"),
    ]
    for spec, field in rows:
        with pytest.raises(InvalidError) as caught:
            csr_write().created(request(**spec))
        assert [cause.field for cause in caught.value.causes] == [field], (spec, field)

    check_refusal(BadRequestError, csr_write().created, request(request="%%%"), match="illegal base64")


def test_decision_is_final_and_carries_its_times() -> None:
    clock = ManualClock()
    first = dict(changed("approval", stored(), clock, conditions=[APPROVED]))
    clock.advance(timedelta(minutes=1))
    again = changed("approval", first, clock, conditions=[{**APPROVED, "message": "still"}])
    assert first["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert again["status"]["conditions"][0]["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert again["status"]["conditions"][0]["lastUpdateTime"] == "2026-01-01T00:01:00Z"
    denied = stored(conditions=[DENIED])
    assert broken("approval", denied, conditions=[DENIED, APPROVED]) == [("FieldValueInvalid", "status.conditions")]
    approved = stored(conditions=[APPROVED])
    for conditions in ([DENIED], [], None):
        assert broken("approval", approved, conditions=conditions) == [("FieldValueForbidden", "status.conditions")]
    found = broken("approval", stored(), conditions=[{**APPROVED, "status": "False"}])
    assert found == [("FieldValueNotSupported", "status.conditions[0].status")]


def test_server_sets_the_requester_and_each_subresource_writes_only_its_own_part() -> None:
    new = csr_write().created(request(username="root", uid="0", groups=["system:masters"], extra={"a": ["b"]}))
    found = {name: new["spec"].get(name) for name in ("username", "uid", "groups", "extra")}
    assert found == {"username": "alice", "uid": "u1", "groups": ["team"], "extra": None}
    new = csr_write().created({**request(), "status": {"conditions": [APPROVED], "certificate": encoded(PEM)}})
    assert new["status"] == {}
    old = stored()
    assert csr_write().changed({**old, "spec": {**old["spec"], "usages": ["any"], "username": "bob"}}, old) is old

    after = changed("status", stored(), conditions=[APPROVED, {"type": "Failed", "status": "True"}])
    assert [condition["type"] for condition in after["status"]["conditions"]] == ["Failed"]
    after = changed("approval", stored(), conditions=[APPROVED], certificate=encoded(b"x"))
    assert "certificate" not in after["status"]

    issued = stored(conditions=[APPROVED], certificate=encoded(b"-----BEGIN CERTIFICATE-----"))
    assert ("FieldValueForbidden", "status.certificate") in broken("status", issued, conditions=[APPROVED])

    failed = {"type": "Failed", "status": "True"}
    shown = {"Pending": [], "Approved": [APPROVED], "Denied": [DENIED], "Approved,Failed": [APPROVED, failed]}
    assert {condition_cell(TableRow({"status": {"conditions": each}}, NOW)): each for each in shown.values()} == shown
    assert condition_cell(TableRow({"status": {"conditions": [APPROVED], "certificate": "x"}}, NOW)) == "Approved,Issued"
