"""certificates.k8s.io: CertificateSigningRequest with its approval and status subresources.

The spec is immutable and contains the creator's identity. The conditions Approved and Denied exclude each other and cannot be
removed. Signers are not part of this module.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from machinery.apiserver.kinds.declaration import builtin
from machinery.apiserver.resource import ApiGroup, Subresource, TableRow
from machinery.apiserver.storage import Actor
from machinery.durations import human_duration
from machinery.errors import Cause, InvalidError, TooLargeError, forbidden, invalid_value, not_supported, required
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time
from machinery.pki.certificates import parse_chain
from machinery.pki.requests import parse_request

APPROVED, DENIED, FAILED = "Approved", "Denied", "Failed"
DECISIONS = (APPROVED, DENIED, FAILED)
USAGES = (
    *("any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment"),
    *("decipher only", "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel"),
    *("ipsec user", "key agreement", "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime"),
    *("server auth", "signing", "timestamping"),
)
SHORTEST = timedelta(minutes=10)
_SIGNER = re.compile(
    r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+/[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?"
)
LONGEST_SIGNER = 571
_SIGNER_RULE = "must be a fully qualified domain and path of the form 'example.com/signer-name'"


def _conditions(document: Document | None) -> list[dict[str, Any]]:
    return list((document or {}).get("status", {}).get("conditions") or [])


def _types(document: Document | None) -> list[str]:
    return [str(condition.get("type", "")) for condition in _conditions(document)]


def _new_request(new: Document, actor: Actor, _now: datetime) -> Document:
    spec = {name: value for name, value in (new.get("spec") or {}).items() if name not in ("extra", "uid", "groups")}
    identity = {"username": actor.user, "uid": actor.uid, "groups": list(actor.groups)}
    given = {name: value for name, value in identity.items() if value or name == "username"}
    return {**new, "spec": {**spec, **given}, "status": {}}


def _decided(new: Document, old: Document, _actor: Actor, now: datetime) -> Document:
    """Return the old object with the new conditions. Set their times."""
    known = {condition.get("type"): condition for condition in _conditions(old)}
    conditions = [_timed(condition, known.get(condition.get("type")), now) for condition in _conditions(new)]
    others = {name: value for name, value in old.get("status", {}).items() if name != "conditions"}
    return {**old, "status": {**others, **({"conditions": conditions} if conditions else {})}}


def _timed(condition: Mapping[str, Any], old: Mapping[str, Any] | None, now: datetime) -> dict[str, Any]:
    moment = format_time(now)
    kept = (old or {}).get("lastTransitionTime") if old and old.get("status") == condition.get("status") else None
    return {
        **condition,
        "lastUpdateTime": condition.get("lastUpdateTime") or moment,
        "lastTransitionTime": condition.get("lastTransitionTime") or kept or moment,
    }


def _status_written(new: Document, old: Document, _actor: Actor, now: datetime) -> Document:
    """Return the old object with the new certificate and conditions. Approved and Denied stay as they were."""
    decided = [condition for condition in _conditions(old) if condition.get("type") in (APPROVED, DENIED)]
    other = [condition for condition in _conditions(new) if condition.get("type") not in (APPROVED, DENIED)]
    known = {condition.get("type"): condition for condition in _conditions(old)}
    conditions = [*decided, *(_timed(condition, known.get(condition.get("type")), now) for condition in other)]
    certificate = (new.get("status") or {}).get("certificate") or ""
    status = {**({"conditions": conditions} if conditions else {}), **({"certificate": certificate} if certificate else {})}
    return {**old, "status": status}


def _violations(new: Document, old: Document | None) -> Iterator[Cause]:
    if old is not None:
        return
    spec: Mapping[str, Any] = new.get("spec") or {}
    yield from _request_violations(spec.get("request", ""))
    usages: Sequence[Any] = spec.get("usages") or ()
    if not usages:
        yield required("spec.usages")
    for index, usage in enumerate(usages):
        if usage not in USAGES:
            yield not_supported(f"spec.usages[{index}]", usage, USAGES)
        if usage in usages[:index]:
            yield Cause("FieldValueDuplicate", f'Duplicate value: "{usage}"', f"spec.usages[{index}]")
    signer = spec.get("signerName", "")
    if not signer:
        yield required("spec.signerName")
    elif len(signer) > LONGEST_SIGNER or not _SIGNER.fullmatch(signer):
        yield invalid_value("spec.signerName", signer[:LONGEST_SIGNER], _SIGNER_RULE)
    elif signer == "kubernetes.io/legacy-unknown":
        yield invalid_value("spec.signerName", signer, "the legacy signerName is not allowed via this API version")
    seconds = spec.get("expirationSeconds")
    if seconds is not None and timedelta(seconds=seconds) < SHORTEST:
        why = "may not specify a duration less than 600 seconds (10 minutes)"
        yield invalid_value("spec.expirationSeconds", seconds, why)


def _request_violations(encoded: str) -> Iterator[Cause]:
    field = "spec.request"
    if not encoded:
        yield required(field)
        return
    pem = base64.b64decode(encoded)
    if b"-----BEGIN CERTIFICATE REQUEST-----" not in pem:
        yield invalid_value(field, encoded[:80], "PEM block type must be CERTIFICATE REQUEST")
        return
    try:
        facts = parse_request(pem)
    except (InvalidError, TooLargeError) as error:
        yield from error.causes or (invalid_value(field, "<request>", error.message),)
        return
    if facts.key_refusal is None and not facts.signature_valid:
        yield invalid_value(field, "<request>", "the signature does not match the key: its maker does not hold the private key")


def _decision_violations(new: Document, old: Document | None) -> Iterator[Cause]:
    field, types = "status.conditions", _types(new)
    for kind in _types(old):
        if kind in DECISIONS and kind not in types:
            yield forbidden(field, f'updates may not remove a condition of type "{kind}"')
    if APPROVED in types and DENIED in types:
        yield invalid_value(field, DENIED, "Approved and Denied conditions are mutually exclusive")
    for index, condition in enumerate(_conditions(new)):
        if not condition.get("type"):
            yield required(f"{field}[{index}].type")
        if not condition.get("status"):
            yield required(f"{field}[{index}].status")
        elif condition.get("type") in DECISIONS and condition["status"] != "True":
            yield not_supported(f"{field}[{index}].status", condition["status"], ("True",))


def _status_violations(new: Document, old: Document | None) -> Iterator[Cause]:
    yield from _decision_violations(new, old)
    field = "status.certificate"
    certificate = new.get("status", {}).get("certificate", "")
    before = (old or {}).get("status", {}).get("certificate", "")
    if certificate and not _is_chain(certificate):
        yield invalid_value(field, "<certificate data>", "must contain at least one CERTIFICATE PEM block")
    if before and certificate != before:
        yield forbidden(field, "updates may not modify existing certificate content")


def _is_chain(encoded: str) -> bool:
    try:
        return bool(parse_chain(base64.b64decode(encoded)))
    except (InvalidError, binascii.Error):
        return False


def condition_cell(row: TableRow) -> str:
    """Return the cell of the column Condition: `Pending`, `Approved,Issued`, `Denied`, ..."""
    shown = [kind for kind in _types(row.document) if kind in (APPROVED, DENIED)][:1]
    shown += [FAILED] if FAILED in _types(row.document) else []
    shown = shown or ["Pending"]
    return ",".join((*shown, "Issued") if row.document.get("status", {}).get("certificate") else shown)


def _duration_cell(row: TableRow) -> str:
    seconds = row.document.get("spec", {}).get("expirationSeconds")
    return "<none>" if seconds is None else human_duration(seconds)


CERTIFICATE_SIGNING_REQUEST = builtin(
    "certificatesigningrequests.certificates.k8s.io",
    {"RequestedDuration": _duration_cell, "Condition": condition_cell},
    fixed=("spec",),
    prepare_create=_new_request,
    prepare_update=lambda new, old, _actor, _now: {**new, "spec": old["spec"]},
    validate=_violations,
    subresources=(
        Subresource("approval", _decided, _decision_violations),
        Subresource("status", _status_written, _status_violations),
    ),
    selectable=lambda document: {"spec.signerName": document.get("spec", {}).get("signerName", "")},
)
CERTIFICATES = ApiGroup("certificates.k8s.io", (CERTIFICATE_SIGNING_REQUEST,))
