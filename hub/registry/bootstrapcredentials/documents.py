"""BootstrapCredentials as documents: strict parsing of a creation request, and the document of a credential."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NoReturn
from uuid import NAMESPACE_OID, uuid5

from hub.api import bootstrapcredentials as rules
from hub.api.bootstrapcredentials import UNBOUND, CredentialBounds, CredentialRecord, CredentialUse, Demand, UseCount
from hub.api.meta import document as doc
from machinery import pki
from machinery.apiserver.storage import GroupResource
from machinery.errors import Cause, ErrorSubject, InvalidError
from machinery.identity import ClusterName, HubId, cluster_name
from machinery.meta.objects import Document, Key
from machinery.meta.selectors import valid_label_key, valid_label_value
from machinery.meta.timestamps import format_time
from machinery.product import is_reserved

KIND = "BootstrapCredential"
MAX_PATTERNS = 64
MAX_LABELS = 64
SHOWN = 100
"""Uses that a document lists."""
ATTESTATION_FIELDS = {
    "issuer": "issuer",
    "keys": "keys",
    "certificateAuthority": "authority",
    "audience": "audience",
    "subject": "subject",
}
"""Names of a Demand's fields in a document."""
_GLOB = re.compile(r"[a-z0-9*?\[\]!-]{1,253}")


DemandFlaws = Callable[[Demand], Iterable[tuple[str, str]]]
"""Field name and message for each problem of an attestation's demand."""


@dataclass(frozen=True, slots=True)
class AdvertisedAddress:
    """External addresses and id of this hub, as they are in every kubeconfig."""

    hub_id: HubId
    server: str
    """`https://host:port` of the HTTPS door."""
    grpc_server: str
    """`host:port` of the gRPC door."""


@dataclass(frozen=True, slots=True)
class RequestedCredential:
    """The parsed creation request."""

    public_key: bytes | None
    """None: a token is requested."""
    cluster: ClusterName | None
    uses: int | None
    seconds: int | None
    bounds: CredentialBounds
    document: Document


@dataclass(frozen=True, slots=True)
class CredentialView:
    """The current state of a credential. `told`: status fields that only the answer to the creation has."""

    record: CredentialRecord
    tally: UseCount
    admitted: Sequence[str]
    uses: Sequence[CredentialUse]
    now: datetime
    revision: int
    told: Mapping[str, str] = field(default_factory=dict, repr=False)


class Reading:
    """Parses one document and reports problems by field."""

    def __init__(self, resource: GroupResource, key: Key, document: Document, flaws: DemandFlaws) -> None:
        self._flaws = flaws
        self._resource = resource
        self._key = key
        self._document = document
        self._spec = doc.mapping(document, "spec")

    def asked(self) -> RequestedCredential:
        """Parses the document. Raises InvalidError."""
        prefix = doc.mapping(self._document, "metadata").get("generateName")
        if not prefix or not self._key.name.startswith(str(prefix)):
            self._forbid("the hub names credentials: use generateName", "metadata.name")
        spec = self._spec
        wants_token = bool(spec.get("token"))
        if wants_token and spec.get("request"):
            self._forbid("a credential is a certificate or a token", "spec.request")
        if wants_token and spec.get("attestation"):
            self._forbid("a token is for agents that cannot attest: ask for a certificate", "spec.attestation")
        public_key = None if wants_token else pki.check_request(str(spec.get("request") or "").encode()).public_key
        bounds = CredentialBounds(self._patterns(), spec.get("clusterSet") or None, self._labels(), self._demand())
        return RequestedCredential(
            public_key,
            self._cluster(),
            spec.get("uses"),
            spec.get("expirationSeconds"),
            UNBOUND if bounds == UNBOUND else bounds,
            self._document,
        )

    def _cluster(self) -> ClusterName | None:
        name = self._spec.get("clusterName")
        try:
            return cluster_name(str(name)) if name else None
        except InvalidError as error:
            self._refuse(error.message, "spec.clusterName")

    def _patterns(self) -> tuple[str, ...]:
        patterns = tuple(map(str, self._spec.get("clusterNames") or ()))
        if patterns and self._spec.get("clusterName"):
            self._forbid("a credential is for one name or for patterns", "spec.clusterNames")
        if len(patterns) > MAX_PATTERNS:
            self._refuse(f"at most {MAX_PATTERNS} patterns", "spec.clusterNames")
        for index, pattern in enumerate(patterns):
            if not _GLOB.fullmatch(pattern):
                why = 'it can match no cluster name: use lower-case letters, digits, "-", "*" and "?"'
                self._refuse(f'"{pattern[:80]}": {why}', f"spec.clusterNames[{index}]")
        return patterns

    def _labels(self) -> dict[str, str]:
        labels = {str(key): str(value) for key, value in doc.mapping(self._document, "spec", "labels").items()}
        if len(labels) > MAX_LABELS:
            self._refuse(f"at most {MAX_LABELS} labels", "spec.labels")
        for key, value in labels.items():
            if not valid_label_key(key) or not valid_label_value(value):
                self._refuse(f'"{key[:80]}={value[:80]}" is no label', "spec.labels")
            if is_reserved(key):
                self._refuse(f'"{key}" is reserved; the set of a cluster is spec.clusterSet', "spec.labels")
        return labels

    def _demand(self) -> Demand | None:
        asked = doc.mapping(self._document, "spec", "attestation")
        if not asked:
            return None
        demand = Demand.of({part: asked.get(field) for field, part in ATTESTATION_FIELDS.items()})
        for part, why in self._flaws(demand):
            field = next(field for field, name in ATTESTATION_FIELDS.items() if name == part)
            self._refuse(why, f"spec.attestation.{field}")
        return demand

    def _forbid(self, message: str, where: str) -> NoReturn:
        self._raise(Cause("FieldValueForbidden", f"Forbidden: {message}", where))

    def _refuse(self, message: str, where: str) -> NoReturn:
        self._raise(Cause("FieldValueInvalid", message, where))

    def _raise(self, cause: Cause) -> NoReturn:
        subject = ErrorSubject(name=self._key.name, group=self._resource.group, kind=KIND)
        text = f'{KIND}.{self._resource.group} "{self._key.name}" is invalid: {cause.field}: {cause.message}'
        raise InvalidError(text, subject=subject, causes=[cause])


def shown(sight: CredentialView, address: AdvertisedAddress, trust_bundle: bytes, api_version: str) -> dict[str, Any]:
    """Returns the document of a credential."""
    record = sight.record
    return {
        "apiVersion": api_version,
        "kind": KIND,
        "metadata": {
            "name": record.id,
            "uid": str(uuid5(NAMESPACE_OID, record.id)),
            "creationTimestamp": format_time(record.created_at),
            "resourceVersion": str(sight.revision),
        },
        "spec": _spec(record),
        "status": {
            **_status(sight),
            "hubID": address.hub_id,
            "server": address.server,
            "grpcServer": address.grpc_server,
            "certificateAuthority": trust_bundle.decode("ascii"),
            **sight.told,
        },
    }


def _spec(record: CredentialRecord) -> dict[str, Any]:
    bounds = record.bounds
    told: dict[str, Any] = {
        "clusterName": record.cluster,
        "clusterNames": list(bounds.patterns),
        "clusterSet": bounds.cluster_set,
        "labels": dict(bounds.labels),
        "attestation": _attestation(bounds.attestation) if bounds.attestation else None,
        "uses": record.uses,
        "token": record.token_hash is not None,
    }
    seconds = round((record.expires_at - record.created_at).total_seconds())
    return {"expirationSeconds": seconds, **{name: value for name, value in told.items() if value}}


def _attestation(demand: Demand) -> dict[str, str]:
    told = demand.document()
    return {field: told[part] for field, part in ATTESTATION_FIELDS.items() if part in told}


def _status(sight: CredentialView) -> dict[str, Any]:
    record, tally = sight.record, sight.tally
    status: dict[str, Any] = {
        "phase": str(rules.phase(record, tally.issued, sight.now)),
        "createdBy": record.created_by,
        "expirationTimestamp": format_time(record.expires_at),
        "admittedClusters": list(sight.admitted),
        "usesSpent": tally.issued,
        "usesHeld": tally.held + tally.names,
        "uses": [_use(use) for use in sight.uses[-SHOWN:]],
    }
    if record.revoked_at is not None:
        status["revocationTimestamp"] = format_time(record.revoked_at)
        status.update({"revokedBy": record.revoked_by} if record.revoked_by else {})
        status.update({"revocationReason": record.revoked_reason} if record.revoked_reason else {})
    return status


def _use(use: CredentialUse) -> dict[str, Any]:
    told: dict[str, Any] = {"clusterName": use.cluster, "agent": use.agent, "requestName": use.request}
    told["heldSince"] = format_time(use.held_at)
    if use.issued_at is not None:
        told["issuedAt"] = format_time(use.issued_at)
    if use.serial is not None:
        told["serialNumber"] = f"{use.serial:x}"
    return told
