"""Validation of CertificateSigningRequests with the rules and messages of Kubernetes.

Source: Kubernetes' validation of certificates.k8s.io/v1: the spec is immutable, decisions are final, a certificate is never
replaced.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from hub.api.certificatesigningrequests.request import API_VERSION, APPROVED, DENIED, FAILED, KIND, MIN_DURATION, Requester
from hub.api.meta import document as doc
from machinery.errors import Cause, invalid_object
from machinery.meta.objects import Document
from machinery.meta.timestamps import format_time

GROUP = "certificates.k8s.io"
KEY_USAGES = (
    "any", "cert sign", "client auth", "code signing", "content commitment", "crl sign", "data encipherment", "decipher only",
    "digital signature", "email protection", "encipher only", "ipsec end system", "ipsec tunnel", "ipsec user", "key agreement",
    "key encipherment", "microsoft sgc", "netscape sgc", "ocsp signing", "s/mime", "server auth", "signing", "timestamping",
)  # fmt: skip
REQUESTERS = ("username", "uid", "groups", "extra")
FINAL_CONDITIONS = (APPROVED, DENIED, FAILED)
_SIGNER = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+/\S+")


def created(new: Document, requester: Requester) -> dict[str, Any]:
    """A new request without status, with the requester's actual identity in the spec. Raises InvalidError."""
    spec = {field: value for field, value in doc.mapping(new, "spec").items() if field not in REQUESTERS}
    spec["username"] = requester.user
    if requester.uid:
        spec["uid"] = requester.uid
    spec["groups"] = list(requester.groups)
    if requester.extra:
        spec["extra"] = {name: list(values) for name, values in requester.extra.items()}
    document = {**doc.typed(new, API_VERSION, KIND), "spec": spec, "status": {}}
    causes = [*_signer_causes(spec), *_usage_causes(spec), *_duration_causes(spec)]
    if causes:
        raise invalid_object(doc.name(new), KIND, GROUP, causes)
    return document


def updated(new: Document, old: Document, now: datetime) -> dict[str, Any]:
    """A request with new metadata or status. Spec, decisions and certificate cannot change. Raises InvalidError."""
    causes = [*_decision_causes(new, old), *_certificate_causes(new, old)]
    if causes:
        raise invalid_object(doc.name(new), KIND, GROUP, causes)
    document = {**doc.typed(new, API_VERSION, KIND), "spec": dict(doc.mapping(old, "spec"))}
    if doc.conditions(new):
        document = doc.with_status(document, conditions=[_dated(entry, now) for entry in doc.conditions(new)])
    return document


def _dated(entry: Mapping[str, Any], now: datetime) -> dict[str, Any]:
    moment = format_time(now)
    updated_at = entry.get("lastUpdateTime") or moment
    return {**entry, "lastUpdateTime": updated_at, "lastTransitionTime": entry.get("lastTransitionTime") or updated_at}


def _signer_causes(spec: Mapping[str, Any]) -> list[Cause]:
    signer = str(spec.get("signerName") or "")
    if _SIGNER.fullmatch(signer):
        return []
    if not signer:
        return [Cause("FieldValueRequired", "Required value", "spec.signerName")]
    rule = "must be a fully qualified domain and path of the form 'example.com/signer-name'"
    return [Cause("FieldValueInvalid", f'Invalid value: "{signer[:200]}": {rule}', "spec.signerName")]


def _usage_causes(spec: Mapping[str, Any]) -> list[Cause]:
    usages = spec.get("usages")
    if not isinstance(usages, list) or not usages:
        return [Cause("FieldValueRequired", "Required value", "spec.usages")]
    supported = ", ".join(f'"{usage}"' for usage in KEY_USAGES)
    return [
        Cause(
            "FieldValueNotSupported",
            f'Unsupported value: "{str(usage)[:80]}": supported values: {supported}',
            f"spec.usages[{index}]",
        )
        for index, usage in enumerate(usages)
        if usage not in KEY_USAGES
    ]


def _duration_causes(spec: Mapping[str, Any]) -> list[Cause]:
    seconds = spec.get("expirationSeconds")
    least = round(MIN_DURATION.total_seconds())
    if seconds is None or (isinstance(seconds, int) and seconds >= least):
        return []
    message = f"Invalid value: {str(seconds)[:20]}: may not specify a duration less than {least} seconds (10 minutes)"
    return [Cause("FieldValueInvalid", message, "spec.expirationSeconds")]


def _decision_causes(new: Document, old: Document) -> list[Cause]:
    present = {entry.get("type") for entry in doc.conditions(new)}
    before = {entry.get("type") for entry in doc.conditions(old)}
    causes = [
        Cause("FieldValueForbidden", f'Forbidden: updates may not remove a condition of type "{kind}"', "status.conditions")
        for kind in FINAL_CONDITIONS
        if kind in before and kind not in present
    ]
    if not causes and {APPROVED, DENIED} <= present:
        message = "Invalid value: Approved and Denied conditions are mutually exclusive"
        causes.append(Cause("FieldValueInvalid", message, "status.conditions"))
    return causes


def _certificate_causes(new: Document, old: Document) -> list[Cause]:
    before, after = (doc.mapping(document, "status").get("certificate") for document in (old, new))
    if not before or before == after:
        return []
    message = "Forbidden: updates may not modify existing certificate content"
    return [Cause("FieldValueForbidden", message, "status.certificate")]
