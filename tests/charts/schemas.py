"""Schemas for rendered objects, of Kubernetes and of the other kinds in use, and the restricted Pod Security Standard."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from kubernetes_validate import utils as kubernetes_validate

OTHERS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "schemas.yaml").read_text())
"""The schema of a kind's spec, by group and kind."""
WHOLE = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}


def validate(document: dict[str, Any], kubernetes: str) -> None:
    """Raises what says where it is wrong."""
    _validate(json.dumps(document), kubernetes)


@cache
def _validate(text: str, kubernetes: str) -> None:
    """Most objects are the same under most values."""
    document = json.loads(text)
    group = document["apiVersion"].rpartition("/")[0]
    spec = OTHERS.get(f"{group}/{document['kind']}")
    if spec is None:
        kubernetes_validate.validate(document, kubernetes, strict=True)
        return
    whole = {"additionalProperties": False, "required": [*WHOLE, "spec"], "properties": {**WHOLE, "spec": spec}}
    jsonschema.validate(document, whole)  # type: ignore[no-untyped-call]


VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
CAPABILITIES = frozenset({"NET_BIND_SERVICE"})


def violations(pod: dict[str, Any]) -> list[str]:
    """What the restricted standard refuses of a pod's spec (source: kubernetes.io, Pod Security Standards); each says where."""
    shared = pod.get("securityContext", {})
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    found += [f"volume {each['name']}" for each in pod.get("volumes", ()) if not set(each) - {"name"} <= VOLUMES]
    found += ["sysctls"] if shared.get("sysctls") else []
    for container in (*pod.get("initContainers", ()), *pod["containers"]):
        own = container.get("securityContext", {})
        both, capabilities = {**shared, **own}, own.get("capabilities", {})
        added = set(capabilities.get("add", ()))
        wrong = {
            "hostPort": any(port.get("hostPort") for port in container.get("ports", ())),
            "privileged": own.get("privileged") or own.get("procMount", "Default") != "Default",
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is not False,
            "runs as root": both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0,
            "seccompProfile": both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"),
            "capabilities": "ALL" not in capabilities.get("drop", ()) or not added <= CAPABILITIES,
            # the standard allows it, and these charts do not need it
            "its root file system can be written": own.get("readOnlyRootFilesystem") is not True,
        }
        found += [f"{container['name']}: {what}" for what, is_so in wrong.items() if is_so]
    return found
