"""What a rendered object is held against: Kubernetes' own schemas, and for kinds of others what is known of them.

The kinds of others are written down as far as the charts use them (sources: the API references of Gateway API 1.5 and of the
Prometheus operator 0.80); what is not written down is refused, so that a field that is misspelt does not pass.
"""

import json
from functools import cache
from typing import Any

import jsonschema
from kubernetes_validate import utils as kubernetes_validate

TEXT: dict[str, Any] = {"type": "string"}
PORT: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 65535}
HOST: dict[str, Any] = {
    "type": "string",
    "pattern": "^(\\*\\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
}
SECTION: dict[str, Any] = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"}

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
RULE = _object(
    "expr",
    alert=TEXT,
    record=TEXT,
    expr=TEXT,
    labels=TEXTS,
    annotations=TEXTS,
    **{"for": INTERVAL, "keep_firing_for": INTERVAL},
)
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
        selector=_object("matchLabels", matchLabels={"type": "object", "additionalProperties": TEXT}),
        endpoints=_some(_object("port", port=TEXT, path=TEXT, interval=INTERVAL)),
    ),
    ("monitoring.coreos.com", "PrometheusRule"): _object("groups", groups=_some(GROUP)),
    ("monitoring.coreos.com", "PodMonitor"): _object(
        "selector podMetricsEndpoints",
        selector=_object("matchLabels", matchLabels={"type": "object", "additionalProperties": TEXT}),
        podMetricsEndpoints=_some(_object(port=TEXT, path=TEXT, interval=INTERVAL)),
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
