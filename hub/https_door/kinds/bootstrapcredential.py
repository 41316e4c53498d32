"""BootstrapCredential, a kind of this project: a short-lived right to join, as a certificate or a token."""

from typing import Any

from hub.api.meta import document as doc
from machinery.apiserver.resource import AGE, Column, Resource, TableRow
from machinery.apiserver.storage import Storage

TEXT: dict[str, Any] = {"type": "string"}
MOMENT: dict[str, Any] = {"type": "string", "format": "date-time"}
POSITIVE: dict[str, Any] = {"type": "integer", "format": "int32", "minimum": 1}
A_YEAR = 365 * 24 * 3600
COUNT: dict[str, Any] = {"type": "integer", "format": "int32"}
ATTESTATION: dict[str, Any] = {
    "type": "object",
    "required": ["issuer"],
    "description": "The first registration must bring a token of a service account of the managed cluster, for this hub alone.",
    "properties": {
        "issuer": {**TEXT, "description": "The issuer of the cluster's tokens: what `iss` in them is."},
        "keys": {**TEXT, "description": "Its keys as a JWKS document; absent: fetched from the issuer's discovery."},
        "certificateAuthority": {
            **TEXT,
            "description": "PEM of the CA behind the issuer's address; absent: those that the hub's system trusts.",
        },
        "audience": {**TEXT, "description": "For whom the token must be; absent: urn:uuid:<the hub's id>."},
        "subject": {**TEXT, "description": "A pattern for the service account: system:serviceaccount:<namespace>:<name>."},
    },
}
USE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "clusterName": TEXT,
        "agent": TEXT,
        "requestName": {**TEXT, "description": "The CertificateSigningRequest."},
        "heldSince": MOMENT,
        "issuedAt": {**MOMENT, "description": "Absent while the request waits."},
        "serialNumber": {**TEXT, "description": "Of the certificate, in hex."},
    },
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "BootstrapCredential lets a cluster join. The private key never leaves its creator: "
    "create one with a certificate request, and the answer's status holds the certificate. With `token` the hub makes a bearer "
    "token instead, for agents that speak the Kubernetes API.",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "request": {
                    **TEXT,
                    "description": "A certificate signing request in PEM over the creator's key; its subject does not count. "
                    "Needed at creation unless a token is asked for, not kept.",
                },
                "token": {"type": "boolean", "description": "Whether the credential is a bearer token for the HTTPS door."},
                "clusterName": {**TEXT, "description": "The only cluster name that may join with it."},
                "clusterNames": {
                    "type": "array",
                    "items": TEXT,
                    "description": "Patterns, of which the whole name of a cluster must fit one; * and ? are wild. Absent, and "
                    "without clusterName: any name.",
                },
                "clusterSet": {
                    **TEXT,
                    "description": "The set that a cluster is put into which joins with it. It is good for new clusters, for "
                    "those of that set, and for those entered by hand that have not joined and are in no set.",
                },
                "labels": {
                    "type": "object",
                    "additionalProperties": TEXT,
                    "description": "Labels that a cluster gets which joins with it, over what its agent says.",
                },
                "attestation": ATTESTATION,
                "uses": {
                    **POSITIVE,
                    "description": "How many agents may get a certificate with it; absent: as many as come.",
                },
                "expirationSeconds": {
                    **POSITIVE,
                    "maximum": A_YEAR,
                    "description": "How long the credential is valid; absent: the hub's default.",
                },
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "phase": {**TEXT, "description": "Active, UsedUp, Expired or Revoked."},
                "createdBy": TEXT,
                "expirationTimestamp": MOMENT,
                "revokedBy": TEXT,
                "revocationTimestamp": MOMENT,
                "revocationReason": TEXT,
                "admittedClusters": {
                    "type": "array",
                    "items": TEXT,
                    "description": "Clusters that were let in with it and have not been deleted.",
                },
                "usesSpent": {**COUNT, "description": "How many agents have got a certificate with it."},
                "usesHeld": {**COUNT, "description": "How many uses are held for those that wait for a decision."},
                "uses": {"type": "array", "items": USE, "description": "The last of them, oldest first."},
                "certificate": {**TEXT, "description": "The certificate in PEM, only in the answer to the creation."},
                "token": {**TEXT, "description": "The bearer token, only in the answer to the creation."},
                "certificateAuthority": {**TEXT, "description": "The hub's CA in PEM."},
                "hubID": TEXT,
                "server": {**TEXT, "description": "How this door is reached from outside."},
                "grpcServer": {**TEXT, "description": "How agents reach the hub: host:port."},
            },
        },
    },
}


def _clusters(row: TableRow) -> str:
    spec = doc.mapping(row.document, "spec")
    return str(spec.get("clusterName") or ",".join(map(str, spec.get("clusterNames") or ())) or "<any>")


def _uses(row: TableRow) -> str:
    status = doc.mapping(row.document, "status")
    return f"{status.get('usesSpent', 0)}/{doc.mapping(row.document, 'spec').get('uses', '-')}"


def _of(part: str, field: str, absent: Any = None) -> Any:
    return lambda row: doc.mapping(row.document, part).get(field, absent)


def _labels(row: TableRow) -> str:
    labels = doc.mapping(row.document, "spec", "labels")
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>"


COLUMNS = (
    Column("Cluster", _clusters, description="The name, or the patterns of names, that may join."),
    Column("Uses", _uses, description="Agents that got a certificate with it, of how many."),
    Column("Phase", _of("status", "phase"), description="Whether it still admits."),
    Column("Expires", _of("status", "expirationTimestamp"), description="Until when."),
    AGE,
    Column("Held", _of("status", "usesHeld", 0), description="Uses held for those that wait.", priority=1),
    Column("Set", _of("spec", "clusterSet", "<none>"), description="The set that clusters are put into.", priority=1),
    Column("Labels", _labels, description="What clusters get.", priority=1),
    Column(
        "Attested",
        lambda row: doc.mapping(row.document, "spec", "attestation").get("issuer", "<none>"),
        description="The issuer whose token a cluster must bring.",
        priority=1,
    ),
    Column("Created By", _of("status", "createdBy"), description="Who made it.", priority=1),
    Column("Revoked By", _of("status", "revokedBy", "<none>"), description="Who ended it.", priority=1),
)


def bootstrap_credential(group_suffix: str, storage: Storage) -> Resource:
    return Resource(
        group=f"hub.{group_suffix}",
        version="v1alpha1",
        name="bootstrapcredentials",
        kind="BootstrapCredential",
        verbs=("create", "delete", "get", "list"),
        schema=SCHEMA,
        columns=COLUMNS,
        storage=storage,
    )
