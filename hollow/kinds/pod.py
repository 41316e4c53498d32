"""Pod: no containers run. The cluster itself creates only pods of its controller-manager and of Deployments."""

from hollow.kinds.cells import OPEN, part
from machinery.apiserver.resource import STATUS, Resource
from machinery.apiserver.storage import Document

_FIELDS = (
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.phase",
    "status.podIP",
)


def _fields(document: Document) -> dict[str, str]:
    return {field: str(part(document, *field.split(".")) or "") for field in _FIELDS}


POD = Resource(
    group="",
    version="v1",
    name="pods",
    kind="Pod",
    short_names=("po",),
    categories=("all",),
    namespaced=True,
    schema=OPEN,
    subresources=(STATUS,),
    selectable=_fields,
    selectable_names=_FIELDS,
    custom=False,
)
