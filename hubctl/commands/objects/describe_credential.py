"""hubctl describe bootstrap-credential: a credential and its uses as text."""

from collections.abc import Mapping
from typing import Any

from hubctl.output.tables import printable, shown, table

NONE = "<none>"
TITLES = ("Cluster", "Agent", "Held Since", "Issued", "Serial Number", "Request")
PARTS = ("clusterName", "agent", "heldSince", "issuedAt", "serialNumber", "requestName")


def lines(document: Mapping[str, Any]) -> list[str]:
    """The lines of the description."""
    spec, status = document.get("spec") or {}, document.get("status") or {}
    facts = [
        ("ID", document["metadata"]["name"]),
        ("Kind", "bearer token, for the HTTPS address" if spec.get("token") else "client certificate"),
        ("For", _whom(spec)),
        ("Cluster Set", spec.get("clusterSet") or NONE),
        ("Labels", ", ".join(f"{key}={value}" for key, value in sorted((spec.get("labels") or {}).items())) or NONE),
        ("Attested By", _issuer(spec.get("attestation") or {})),
        ("Created", f"{document['metadata'].get('creationTimestamp', '')} by {status.get('createdBy', '')}"),
        ("Expires", status.get("expirationTimestamp", "")),
        ("Phase", status.get("phase", "")),
        *_revoked(status),
        ("Uses", f"{status.get('usesSpent', 0)} spent, {status.get('usesHeld', 0)} held, of {spec.get('uses', 'any number')}"),
        ("Let In", ", ".join(status.get("admittedClusters") or []) or NONE),
    ]
    width = max(len(name) for name, _ in facts) + 2
    described = [f"{name + ':':<{width}}{printable(str(value))}" for name, value in facts]
    cells = [[shown(use.get(part) or NONE) for part in PARTS] for use in status.get("uses") or []]
    return [*described, *(["Agents:", *table(TITLES, cells, indent="  ")] if cells else [f"Agents: {NONE}"])]


def _whom(spec: Mapping[str, Any]) -> str:
    if spec.get("clusterName"):
        return f"cluster {spec['clusterName']}"
    patterns = spec.get("clusterNames") or []
    return f"clusters {', '.join(patterns)}" if patterns else "clusters of any name"


def _issuer(attestation: Mapping[str, Any]) -> str:
    if not attestation:
        return NONE
    how = "with the keys given" if attestation.get("keys") else "with the keys that it publishes"
    subject = f", for {attestation['subject']}" if attestation.get("subject") else ""
    return f"{attestation.get('issuer', '')}, {how}{subject}"


def _revoked(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "revocationTimestamp" not in status:
        return []
    why = f" ({status['revocationReason']})" if status.get("revocationReason") else ""
    return [("Revoked", f"{status['revocationTimestamp']} by {status.get('revokedBy') or 'somebody'}{why}")]
