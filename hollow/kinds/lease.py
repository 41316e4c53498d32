"""Lease: who holds it and when it was renewed last."""

from hollow.kinds.cells import part
from machinery.apiserver.resource import Column, Resource, Row
from machinery.apiserver.tables import AGE

_SPEC = {
    "type": "object",
    "properties": {
        "acquireTime": {"type": "string", "format": "micro-time", "nullable": True},
        "holderIdentity": {"type": "string", "nullable": True},
        "leaseDurationSeconds": {"type": "integer", "format": "int32", "minimum": 1, "nullable": True},
        "leaseTransitions": {"type": "integer", "format": "int32", "minimum": 0, "nullable": True},
        "preferredHolder": {"type": "string", "nullable": True},
        "renewTime": {"type": "string", "format": "micro-time", "nullable": True},
        "strategy": {"type": "string", "nullable": True},
    },
}


def _holder(row: Row) -> str:
    return str(part(row.document, "spec", "holderIdentity") or "")


LEASE = Resource(
    group="coordination.k8s.io",
    version="v1",
    name="leases",
    kind="Lease",
    namespaced=True,
    schema={"type": "object", "properties": {"spec": _SPEC}},
    columns=(Column("Holder", _holder, description="The identity of the holder of a current lease."), AGE),
    custom=False,
)
