"""The restricted Pod Security Standard, as far as a pod can break it (source: kubernetes.io, Pod Security Standards)."""

from collections.abc import Iterator
from typing import Any

VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
)
CAPABILITIES = frozenset({"NET_BIND_SERVICE"})


def violations(pod: dict[str, Any]) -> list[str]:
    """What of a pod's spec the standard refuses; each says where."""
    return [*_of_the_pod(pod), *(found for container in _containers(pod) for found in _of_a_container(pod, container))]


def _containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def _of_the_pod(pod: dict[str, Any]) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield name
    for volume in pod.get("volumes", ()):
        if not set(volume) - {"name"} <= VOLUMES:
            yield f"volume {volume['name']}"
    if pod.get("securityContext", {}).get("sysctls"):
        yield "sysctls"


def _of_a_container(pod: dict[str, Any], container: dict[str, Any]) -> Iterator[str]:
    name, own = container["name"], container.get("securityContext", {})
    both = {**pod.get("securityContext", {}), **own}
    if any(port.get("hostPort") for port in container.get("ports", ())):
        yield f"{name}: hostPort"
    if own.get("privileged") or own.get("procMount", "Default") != "Default":
        yield f"{name}: privileged"
    if own.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation"
    if both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0:
        yield f"{name}: runs as root"
    if both.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        yield f"{name}: seccompProfile"
    capabilities = own.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()) or not set(capabilities.get("add", ())) <= CAPABILITIES:
        yield f"{name}: capabilities"
    if own.get("readOnlyRootFilesystem") is not True:
        yield f"{name}: its root file system can be written, which the standard allows and these charts do not need"
