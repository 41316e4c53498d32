"""BootstrapCredential, ours: a short-lived right to join, as a certificate over a key that its creator keeps, or as a token."""

from typing import Any

from hub.domain import document as doc
from machinery.apiserver.resource import Column, Resource, Row
from machinery.apiserver.storage import Storage
from machinery.apiserver.tables import AGE

TEXT: dict[str, Any] = {"type": "string"}
MOMENT: dict[str, Any] = {"type": "string", "format": "date-time"}
POSITIVE: dict[str, Any] = {"type": "integer", "format": "int32", "minimum": 1}
A_YEAR = 365 * 24 * 3600
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
                "clusterName": {**TEXT, "description": "The only cluster name that may be admitted; absent: any name."},
                "uses": {**POSITIVE, "description": "How many cluster names may be admitted; absent: as many as come."},
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
                "phase": {**TEXT, "description": "Active, UsedUp or Expired."},
                "createdBy": TEXT,
                "expirationTimestamp": MOMENT,
                "admittedClusters": {"type": "array", "items": TEXT},
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


def _spec(field: str, absent: str) -> Any:
    return lambda row: doc.mapping(row.document, "spec").get(field, absent)


def _uses(row: Row) -> str:
    admitted = len(doc.sequence(row.document, "status", "admittedClusters"))
    return f"{admitted}/{doc.mapping(row.document, 'spec').get('uses', '-')}"


COLUMNS = (
    Column("Cluster", _spec("clusterName", "<any>"), description="The cluster name that may be admitted."),
    Column("Uses", _uses, description="Cluster names admitted, of how many."),
    Column("Phase", lambda row: doc.mapping(row.document, "status").get("phase"), description="Whether it still admits."),
    Column("Expires", lambda row: doc.mapping(row.document, "status").get("expirationTimestamp"), description="Until when."),
    AGE,
)


def bootstrap_credential(group_suffix: str, storage: Storage) -> Resource:
    """The resource as the hub serves it, over its own storage."""
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
