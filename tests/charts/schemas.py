"""Schemas for rendered objects, of Kubernetes and of the other kinds in use, and the restricted Pod Security Standard."""

import json
from functools import cache
from typing import Any

import jsonschema
from kubernetes_validate import utils as kubernetes_validate

TEXT: dict[str, Any] = {"type": "string"}
PORT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 65535}
_NAME = "[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
HOST: dict[str, Any] = {"type": "string", "pattern": "^(\\*\\.)?" + _NAME}
SECTION: dict[str, Any] = {"type": "string", "pattern": "^" + _NAME}
INTERVAL: dict[str, Any] = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h|d))+$"}


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required.split(), "properties": properties}


def _some(items: dict[str, Any], least: int = 1, most: int = 64) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


PARENT = _object("name", group=TEXT, kind=TEXT, namespace=TEXT, name=TEXT, sectionName=SECTION, port=PORT)
BACKEND = _object("name port", name=TEXT, port=PORT, namespace=TEXT, weight={"type": "integer"})
LISTENER = _object(
    "name port protocol",
    name=SECTION,
    hostname=HOST,
    port=PORT,
    protocol={"enum": ["HTTP", "HTTPS", "TLS", "TCP", "UDP"]},
    tls=_object("mode", mode={"enum": ["Terminate", "Passthrough"]}),
    allowedRoutes=_object(
        kinds=_some(_object("kind", group=TEXT, kind=TEXT)),
        namespaces=_object("from", **{"from": {"enum": ["All", "Selector", "Same"]}}),
    ),
)
TEXTS: dict[str, Any] = {"type": "object", "additionalProperties": TEXT}
ENDPOINT = _object(port=TEXT, path=TEXT, interval=INTERVAL)
SELECTOR = _object("matchLabels", matchLabels=TEXTS)
TIMES = {"for": INTERVAL, "keep_firing_for": INTERVAL}
RULE = _object("expr", alert=TEXT, record=TEXT, expr=TEXT, labels=TEXTS, annotations=TEXTS, **TIMES)
GROUP = _object("name rules", name=TEXT, interval=INTERVAL, rules=_some(RULE, most=200))
OTHERS: dict[tuple[str, str], dict[str, Any]] = {
    ("gateway.networking.k8s.io", "Gateway"): _object(
        "gatewayClassName listeners", gatewayClassName=TEXT, listeners=_some(LISTENER)
    ),
    ("gateway.networking.k8s.io", "TLSRoute"): _object(
        "hostnames parentRefs rules",
        hostnames=_some(HOST, most=16),
        parentRefs=_some(PARENT, most=32),
        rules=_some(_object("backendRefs", backendRefs=_some(BACKEND, most=16)), most=1),
    ),
    ("apiregistration.k8s.io", "APIService"): _object(
        "group version groupPriorityMinimum versionPriority service",
        group=HOST,
        version={"type": "string", "pattern": "^v[0-9]+((alpha|beta)[0-9]+)?$"},
        groupPriorityMinimum={"type": "integer", "minimum": 1, "maximum": 20000},
        versionPriority={"type": "integer", "minimum": 1, "maximum": 1000},
        service=_object("name namespace", name=TEXT, namespace=TEXT, port=PORT),
    ),
    ("monitoring.coreos.com", "ServiceMonitor"): _object(
        "selector endpoints",
        selector=SELECTOR,
        endpoints=_some(
            _object(
                "port", port=TEXT, path=TEXT, interval=INTERVAL, relabelings=_some(_object(targetLabel=TEXT, replacement=TEXT))
            )
        ),
    ),
    ("monitoring.coreos.com", "PrometheusRule"): _object("groups", groups=_some(GROUP)),
    ("monitoring.coreos.com", "PodMonitor"): _object(
        "selector podMetricsEndpoints",
        selector=SELECTOR,
        podMetricsEndpoints=_some(ENDPOINT),
    ),
}
"""The schema of a kind's spec, by group and kind."""


def validate(document: dict[str, Any], kubernetes: str) -> None:
    """Raises what says where it is wrong."""
    _validate(json.dumps(document), kubernetes)


@cache
def _validate(text: str, kubernetes: str) -> None:
    """Most objects are the same under most values."""
    document = json.loads(text)
    group = document["apiVersion"].rpartition("/")[0]
    spec = OTHERS.get((group, document["kind"]))
    if spec is None:
        kubernetes_validate.validate(document, kubernetes, strict=True)
        return
    whole = _object("apiVersion kind metadata spec", apiVersion=TEXT, kind=TEXT, metadata={"type": "object"}, spec=spec)
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
