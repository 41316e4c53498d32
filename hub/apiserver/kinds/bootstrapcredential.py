"""BootstrapCredential, `hub.<suffix>/v1alpha1`: a time-limited right to join, bound to a cluster name."""

from datetime import datetime, timedelta

from hub.apiserver.credentials import state
from machinery.apiserver.resource import Column, Resource, Row, Schema
from machinery.apiserver.storage import Storage
from machinery.product import GROUP_SUFFIX

VERSION = "v1alpha1"

SCHEMA: Schema = {
    "type": "object",
    "description": "A time-limited right to register a cluster, held as a client certificate.",
    "properties": {
        "spec": {
            "type": "object",
            "properties": {
                "request": {"type": "string", "description": "PEM of a certificate signing request; its key stays with you."},
                "clusterName": {"type": "string", "description": "The one cluster name it may admit; absent: any."},
                "uses": {"type": "integer", "minimum": 1, "description": "How many cluster names it may admit."},
                "expirationSeconds": {"type": "integer", "minimum": 60, "description": "Its life; absent: the hub's default."},
            },
        },
        "status": {
            "type": "object",
            "properties": {
                "certificate": {"type": "string", "description": "PEM, only in the answer to the creation."},
                "certificateAuthority": {"type": "string"},
                "createdBy": {"type": "string"},
                "expiresAt": {"type": "string", "format": "date-time"},
                "grpcServer": {"type": "string"},
                "httpsServer": {"type": "string"},
                "hubID": {"type": "string"},
                "podAddresses": {"type": "array", "items": {"type": "string"}},
                "revokedAt": {"type": "string", "format": "date-time"},
                "usesSpent": {"type": "integer"},
            },
        },
    },
}


def _cluster(row: Row) -> str:
    return str((row.document.get("spec") or {}).get("clusterName") or "<any>")


def _uses(row: Row) -> str:
    spent = (row.document.get("status") or {}).get("usesSpent", 0)
    return f"{spent}/{(row.document.get('spec') or {}).get('uses', 'unlimited')}"


def _expires(row: Row) -> str:
    ends = datetime.fromisoformat(str(row.document["status"]["expiresAt"]))
    left = ends - row.now
    return "expired" if left <= timedelta() else f"in {timedelta(seconds=round(left.total_seconds()))}"


COLUMNS = (
    Column("Cluster", _cluster, description="The cluster name it may admit."),
    Column("State", lambda row: state(row.document, row.now), description="Valid, Used, Expired or Revoked."),
    Column("Uses", _uses, description="Cluster names admitted, of how many."),
    Column("Expires", _expires, description="When it ends."),
    Column("Created By", lambda row: row.document["status"].get("createdBy", ""), priority=1),
)


def bootstrap_credentials(storage: Storage, suffix: str = GROUP_SUFFIX) -> Resource:
    return Resource(
        group=f"hub.{suffix}",
        version=VERSION,
        name="bootstrapcredentials",
        kind="BootstrapCredential",
        singular="bootstrapcredential",
        short_names=("bootcred",),
        verbs=("create", "delete", "get", "list"),
        schema=SCHEMA,
        columns=COLUMNS,
        storage=storage,
    )
