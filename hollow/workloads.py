"""The pods of a Deployment, as its controllers and a kubelet would create them, Running at once. Pure."""

import hashlib
import json
from collections.abc import Sequence

from hollow.objects import Document
from machinery.errors import InvalidError

SUFFIX = 10


def template_hash(deployment: Document) -> str:
    """A hash that differs when the pod template differs."""
    text = json.dumps(deployment["spec"].get("template") or {}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:SUFFIX]


def pods_of(deployment: Document, nodes: Sequence[Document]) -> list[Document]:
    """The desired pods. Raises InvalidError when the selector does not match the template's labels."""
    metadata, spec = deployment["metadata"], deployment["spec"]
    template = spec.get("template") or {}
    labels = (template.get("metadata") or {}).get("labels") or {}
    selected = (spec.get("selector") or {}).get("matchLabels") or {}
    if not selected or not selected.items() <= labels.items():
        raise InvalidError("spec.template.metadata.labels: `selector` does not match template `labels`")
    node = _node(template.get("spec") or {}, nodes)
    prefix = f"{metadata['name']}-{template_hash(deployment)}"
    return [_pod(deployment, f"{prefix}-{number}", labels, node) for number in range(int(spec.get("replicas", 1)))]


def _node(spec: Document, nodes: Sequence[Document]) -> str:
    """The node that the pod names, or the first schedulable one; "": none, so the pod is Pending."""
    if named := spec.get("nodeName"):
        return str(named)
    free = (node["metadata"]["name"] for node in nodes if not (node.get("spec") or {}).get("unschedulable"))
    return str(next(free, ""))


def _pod(deployment: Document, name: str, labels: Document, node: str) -> Document:
    metadata, template = deployment["metadata"], deployment["spec"]["template"]
    owner = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "name": metadata["name"],
        "uid": metadata["uid"],
        "controller": True,
    }
    containers = [each["name"] for each in template["spec"].get("containers") or ()]
    statuses = [{"name": container, "ready": True, "restartCount": 0} for container in containers]
    status = {"phase": "Running", "containerStatuses": statuses} if node else {"phase": "Pending"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": metadata["namespace"], "labels": labels, "ownerReferences": [owner]},
        "spec": {**template["spec"], "nodeName": node},
        "status": status,
    }


def is_owned(pod: Document, uid: str) -> bool:
    return any(owner.get("uid") == uid for owner in pod["metadata"].get("ownerReferences") or ())
