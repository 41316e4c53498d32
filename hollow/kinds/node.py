"""Node: as kubelets report it."""

from collections.abc import Callable

from hollow.kinds.cells import NONE, UNKNOWN, part
from machinery.apiserver.kinds.declaration import OPEN, TEXT, listing, record
from machinery.apiserver.resource import AGE, STATUS, Column, Resource, TableRow

_BY_TYPE = listing({**OPEN, "properties": {"type": TEXT}}, "type")
_ROLE = "node-role.kubernetes.io/"


def _status(row: TableRow) -> str:
    ready = next(
        (condition for condition in part(row.document, "status", "conditions") or () if condition.get("type") == "Ready"), None
    )
    words = ["Unknown"] if ready is None else ["Ready" if ready.get("status") == "True" else "NotReady"]
    if part(row.document, "spec", "unschedulable"):
        words.append("SchedulingDisabled")
    return ",".join(words)


def _roles(row: TableRow) -> str:
    labels = part(row.document, "metadata", "labels") or {}
    return ",".join(sorted(label.removeprefix(_ROLE) for label in labels if label.startswith(_ROLE))) or NONE


def _address(kind: str) -> Callable[[TableRow], str]:
    def cell(row: TableRow) -> str:
        addresses = part(row.document, "status", "addresses") or ()
        return next((str(address.get("address")) for address in addresses if address.get("type") == kind), NONE)

    return cell


def _told(name: str, absent: str = UNKNOWN) -> Callable[[TableRow], str]:
    def cell(row: TableRow) -> str:
        return str(part(row.document, "status", "nodeInfo", name) or absent)

    return cell


NODE = Resource(
    group="",
    version="v1",
    name="nodes",
    kind="Node",
    short_names=("no",),
    schema=record(
        "Node is a worker node in Kubernetes.",
        spec={**OPEN, "description": "Its desired state.", "properties": {"podCIDRs": listing(TEXT, kind="set")}},
        status={**OPEN, "description": "Its state.", "properties": {"addresses": _BY_TYPE, "conditions": _BY_TYPE}},
    ),
    subresources=(STATUS,),
    columns=(
        Column("Status", _status, description="The status of the node"),
        Column("Roles", _roles, description="The roles of the node"),
        AGE,
        Column("Version", _told("kubeletVersion", ""), description="Kubelet Version reported by the node."),
        Column("Internal-IP", _address("InternalIP"), priority=1, description="List of addresses reachable to the node."),
        Column("External-IP", _address("ExternalIP"), priority=1, description="List of addresses reachable to the node."),
        Column("OS-Image", _told("osImage"), priority=1, description="OS Image reported by the node."),
        Column("Kernel-Version", _told("kernelVersion"), priority=1, description="Kernel Version reported by the node."),
        Column(
            "Container-Runtime",
            _told("containerRuntimeVersion"),
            priority=1,
            description="ContainerRuntime Version reported by the node.",
        ),
    ),
    selectable=lambda document: {"spec.unschedulable": str(bool(part(document, "spec", "unschedulable"))).lower()},
    selectable_names=("spec.unschedulable",),
    custom=False,
)
