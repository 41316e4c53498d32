"""coordination.k8s.io: Lease."""

from typing import Any

from machinery.apiserver.http.status_errors import invalid_value
from machinery.apiserver.read.tables import AGE
from machinery.apiserver.resource import ApiGroup, Column, Resource
from machinery.apiserver.storage import Document
from machinery.errors import Cause

_SCHEMA: dict[str, Any] = {
    "description": "Lease defines a lease concept.",
    "type": "object",
    "properties": {
        "spec": {
            "description": "spec contains the specification of the Lease.",
            "type": "object",
            "properties": {
                "acquireTime": {
                    "description": "acquireTime is a time when the current lease was acquired.",
                    "type": "string",
                    "format": "micro-time",
                    "nullable": True,
                },
                "holderIdentity": {
                    "description": "holderIdentity contains the identity of the holder of a current lease.",
                    "type": "string",
                },
                "leaseDurationSeconds": {
                    "description": "leaseDurationSeconds is a duration that candidates for a lease need to wait to force "
                    "acquire it. This is measured against the time of last observed renewTime.",
                    "type": "integer",
                    "format": "int32",
                },
                "leaseTransitions": {
                    "description": "leaseTransitions is the number of transitions of a lease between holders.",
                    "type": "integer",
                    "format": "int32",
                },
                "preferredHolder": {"description": "Who should hold the lease next.", "type": "string"},
                "renewTime": {
                    "description": "renewTime is a time when the current holder of a lease has last updated the lease.",
                    "type": "string",
                    "format": "micro-time",
                    "nullable": True,
                },
                "strategy": {"description": "How the holder is elected.", "type": "string"},
            },
        }
    },
}


def _violations(new: Document, _old: Document | None) -> list[Cause]:
    spec = new.get("spec", {})
    causes = []
    if spec.get("leaseDurationSeconds") is not None and spec["leaseDurationSeconds"] <= 0:
        causes.append(invalid_value("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0"))
    if spec.get("leaseTransitions") is not None and spec["leaseTransitions"] < 0:
        why = "must be greater than or equal to 0"
        causes.append(invalid_value("spec.leaseTransitions", spec["leaseTransitions"], why))
    return causes


LEASE = Resource(
    group="coordination.k8s.io",
    version="v1",
    name="leases",
    kind="Lease",
    namespaced=True,
    custom=False,
    schema=_SCHEMA,
    validate=_violations,
    columns=(
        Column(
            "Holder",
            lambda row: row.document.get("spec", {}).get("holderIdentity", ""),
            description="holderIdentity contains the identity of the holder of a current lease.",
        ),
        AGE,
    ),
)

COORDINATION = ApiGroup("coordination.k8s.io", (LEASE,))
