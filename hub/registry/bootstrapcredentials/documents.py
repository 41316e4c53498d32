"""BootstrapCredentials as documents: strict parsing of a creation request, and the document of a credential."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from hub.api import bootstrapcredentials as credential_rules
from hub.api.bootstrapcredentials import AttestationRequirement, CredentialBounds, CredentialRecord, CredentialUse, UseCount
from hub.api.meta import document as doc
from hub.registry.bootstrapcredentials.service import CredentialTerms
from machinery import pki
from machinery.apiserver.storage import GroupResource
from machinery.errors import Cause, ErrorSubject, InvalidError, forbidden
from machinery.identity import HubId, cluster_name
from machinery.meta.objects import Document, Key
from machinery.meta.selectors import valid_label_key, valid_label_value
from machinery.meta.timestamps import format_time
from machinery.product import is_reserved

KIND = "BootstrapCredential"
MAX_PATTERNS = 64
MAX_LABELS = 64
SHOWN = 100
"""Largest number of uses that a document lists."""
ATTESTATION_FIELDS = {**{name: name for name in ("issuer", "keys", "audience", "subject")}, "certificateAuthority": "authority"}
"""Fields of `spec.attestation`, each with the name of the field of AttestationRequirement that it sets."""
_GLOB = re.compile(r"[a-z0-9*?\[\]!-]{1,253}")
_invalid = partial(Cause, "FieldValueInvalid")


DemandFlaws = Callable[[AttestationRequirement], Iterable[tuple[str, str]]]
"""Returns the field name and a message for each problem of a required attestation."""


@dataclass(frozen=True, slots=True)
class AdvertisedAddress:
    """External addresses and id of this hub, as in kubeconfigs."""

    hub_id: HubId
    server: str
    """`https://host:port` of the HTTPS door."""
    grpc_server: str
    """`host:port` of the gRPC door."""


@dataclass(frozen=True, slots=True)
class CredentialView:
    """The current state of a credential. `secret`: status fields that only the response to its creation contains."""

    record: CredentialRecord
    tally: UseCount
    admitted: Sequence[str]
    uses: Sequence[CredentialUse]
    now: datetime
    revision: int
    secret: Mapping[str, str] = field(default_factory=dict, repr=False)


def read_request(
    resource: GroupResource, key: Key, document: Document, flaws: DemandFlaws, lifetime: timedelta
) -> tuple[CredentialTerms, bytes | None]:
    """Return the terms and the public key (None: a token is requested) of a creation request. `lifetime`: the default.

    Raises InvalidError.
    """
    spec = doc.mapping(document, "spec")
    labels = {str(label): str(value) for label, value in doc.mapping(spec, "labels").items()}
    asked = doc.mapping(spec, "attestation")
    demand = (
        AttestationRequirement.of({part: asked.get(field) for field, part in ATTESTATION_FIELDS.items()}) if asked else None
    )
    bounds = CredentialBounds(tuple(map(str, spec.get("clusterNames") or ())), spec.get("clusterSet") or None, labels, demand)
    for cause in _violations(key, document, bounds, flaws):
        subject = ErrorSubject(name=key.name, group=resource.group, kind=KIND)
        text = f'{KIND}.{resource.group} "{key.name}" is invalid: {cause.field}: {cause.message}'
        raise InvalidError(text, subject=subject, causes=[cause])
    public_key = None if spec.get("token") else pki.check_request(str(spec.get("request") or "").encode()).public_key
    name, seconds = spec.get("clusterName"), spec.get("expirationSeconds")
    lifetime = lifetime if seconds is None else timedelta(seconds=seconds)
    return CredentialTerms(name or None, spec.get("uses"), lifetime, bounds), public_key


def _violations(key: Key, document: Document, bounds: CredentialBounds, flaws: DemandFlaws) -> Iterator[Cause]:
    spec, prefix = doc.mapping(document, "spec"), doc.mapping(document, "metadata").get("generateName")
    if not prefix or not key.name.startswith(str(prefix)):
        yield forbidden("metadata.name", "the hub names credentials: use generateName")
    if spec.get("token") and spec.get("request"):
        yield forbidden("spec.request", "a credential is either a certificate or a token")
    if spec.get("token") and spec.get("attestation"):
        yield forbidden("spec.attestation", "a token does not support attestation: request a certificate")
    if bounds.patterns and spec.get("clusterName"):
        yield forbidden("spec.clusterNames", "set either clusterName or clusterNames")
    if len(bounds.patterns) > MAX_PATTERNS:
        yield _invalid(f"at most {MAX_PATTERNS} patterns", "spec.clusterNames")
    for index, pattern in enumerate(bounds.patterns):
        if not _GLOB.fullmatch(pattern):
            why = 'it can match no cluster name: use lower-case letters, digits, "-", "*" and "?"'
            yield _invalid(f'"{pattern[:80]}": {why}', f"spec.clusterNames[{index}]")
    yield from _label_violations(bounds.labels)
    for part, why in flaws(bounds.attestation) if bounds.attestation else ():
        field = next(field for field, name in ATTESTATION_FIELDS.items() if name == part)
        yield _invalid(why, f"spec.attestation.{field}")
    try:
        cluster_name(str(spec.get("clusterName") or "any"))
    except InvalidError as error:
        yield _invalid(error.message, "spec.clusterName")


def _label_violations(labels: Mapping[str, str]) -> Iterator[Cause]:
    if len(labels) > MAX_LABELS:
        yield _invalid(f"at most {MAX_LABELS} labels", "spec.labels")
    for label, value in labels.items():
        if not valid_label_key(label) or not valid_label_value(value):
            yield _invalid(f'"{label[:80]}={value[:80]}" is not a valid label', "spec.labels")
        if is_reserved(label):
            yield _invalid(f'"{label}" is reserved; set the cluster set in spec.clusterSet', "spec.labels")


def shown(view: CredentialView, address: AdvertisedAddress, trust_bundle: bytes, api_version: str) -> dict[str, Any]:
    record, bounds, tally = view.record, view.record.bounds, view.tally
    demand = bounds.attestation.document() if bounds.attestation else {}
    spec: dict[str, Any] = {
        "clusterName": record.cluster,
        "clusterNames": list(bounds.patterns),
        "clusterSet": bounds.cluster_set,
        "labels": dict(bounds.labels),
        "attestation": {field: demand[part] for field, part in ATTESTATION_FIELDS.items() if part in demand},
        "uses": record.uses,
        "token": record.token_hash is not None,
    }
    status: dict[str, Any] = {
        "phase": str(credential_rules.phase(record, tally.issued, view.now)),
        "createdBy": record.created_by,
        "expirationTimestamp": format_time(record.expires_at),
        "admittedClusters": list(view.admitted),
        "usesSpent": tally.issued,
        "usesHeld": tally.held + tally.names,
        "uses": [_use(use) for use in view.uses[-SHOWN:]],
    }
    if record.revoked_at is not None:
        status["revocationTimestamp"] = format_time(record.revoked_at)
        status |= {"revokedBy": record.revoked_by} if record.revoked_by else {}
        status |= {"revocationReason": record.revoked_reason} if record.revoked_reason else {}
    seconds = max(round((record.expires_at - record.created_at).total_seconds()), 1)  # the clock was ahead at the creation
    return {
        "apiVersion": api_version,
        "kind": KIND,
        "metadata": {
            "name": record.id,
            "uid": str(uuid5(NAMESPACE_OID, record.id)),
            "creationTimestamp": format_time(record.created_at),
            "resourceVersion": str(view.revision),
        },
        "spec": {"expirationSeconds": seconds, **{name: value for name, value in spec.items() if value}},
        "status": {
            **status,
            "hubID": address.hub_id,
            "server": address.server,
            "grpcServer": address.grpc_server,
            "certificateAuthority": trust_bundle.decode("ascii"),
            **view.secret,
        },
    }


def _use(use: CredentialUse) -> dict[str, Any]:
    shown = {"clusterName": use.cluster, "agent": use.agent, "requestName": use.request, "heldSince": format_time(use.held_at)}
    if use.issued_at is not None:
        shown["issuedAt"] = format_time(use.issued_at)
    if use.serial is not None:
        shown["serialNumber"] = f"{use.serial:x}"
    return shown
