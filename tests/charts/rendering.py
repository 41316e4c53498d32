"""The charts as the Helm library renders them, and what is looked for in what comes out."""

import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "charts"
VALUES: dict[str, dict[str, Any]] = {
    "hub": {"advertise": {"grpc": "hub.example.com:8443", "https": "hub.example.com:6443"}},
    "spoke": {"clusterName": "cluster1"},
}
FULL: dict[str, dict[str, Any]] = {
    "hub": VALUES["hub"]
    | {
        "autoApprove": ["edge-*", "*"],
        "database": {"existingSecret": "hub-database"},
        "keys": {"existingSecret": "hub-keys"},
        "replicas": 3,
        "election": {"lock": "kubernetes"},
        "kubernetesCA": {"enabled": True, "groups": ["ops"], "server": "https://k8s.example.com", "priorityClassName": "high"},
        "ca": {"keyPlace": "secret", "secret": "hub-ca-keys"},
        "imagePullSecrets": [{"name": "pull"}],
        "persistence": {"size": "10Gi", "storageClassName": "fast"},
        "service": {"type": "LoadBalancer", "annotations": {"example.com/tcp": "true"}},
        "podAnnotations": {"example.com/note": "x"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"key": "hub", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
        "serviceAccount": {"name": "other", "annotations": {"example.com/role": "hub"}},
    },
    "spoke": VALUES["spoke"]
    | {
        "bootstrap": {"existingSecret": "east", "furtherSecrets": ["west", "north"]},
        "hosted": {"kubeconfigSecret": "managed"},
        "externalServerURLs": ["https://one.example.com:6443", "https://two.example.com:6443"],
        "addOns": {"enabled": False},
        "podAnnotations": {"example.com/note": "x"},
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "tolerations": [{"operator": "Exists"}],
        "serviceAccount": {"name": "other", "annotations": {"example.com/role": "spoke"}},
    },
}

BARE = VALUES["hub"] | {"adminKubeconfig": {"enabled": False}}
"""A hub that asks the cluster that it runs in for nothing."""
_SHARED = {"database": {"existingSecret": "hub-database"}, "keys": {"existingSecret": "hub-keys"}}
_TWO_HOSTS = {"advertise": {"grpc": "agents.example.com:443", "https": "api.example.com:443"}}
MATRIX: dict[str, dict[str, dict[str, Any]]] = {
    "hub": {
        "least": VALUES["hub"],
        "full": FULL["hub"],
        "bare": BARE,
        "named": VALUES["hub"] | {"fullnameOverride": "fleet-hub", "image": {"digest": "sha256:" + "0" * 64}},
        "database by url": VALUES["hub"] | {"database": {"url": "postgresql+psycopg://hub:secret@db/hub"}},
        "no volume": VALUES["hub"] | _SHARED | {"persistence": {"enabled": False}},
        "apart": VALUES["hub"] | _SHARED | {"replicas": 2, "antiAffinity": "hard", "podDisruptionBudget": {"enabled": False}},
        "anywhere": VALUES["hub"] | {"securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}},
        "ingress": _TWO_HOSTS | {"ingress": {"enabled": True, "className": "nginx"}},
        "gateway of its own": VALUES["hub"] | {"gateway": {"enabled": True, "className": "envoy"}},
        "gateway of others": _TWO_HOSTS
        | {"gateway": {"enabled": True, "routeVersion": "v1alpha2", "parentRefs": [{"name": "edge", "namespace": "infra"}]}},
        "closed": VALUES["hub"]
        | {
            "networkPolicy": {
                "enabled": True,
                "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
                "egress": [{"ports": [{"port": 5432}], "to": [{"podSelector": {}}]}],
            }
        },
        "load balancer": VALUES["hub"]
        | {
            "service": {
                "type": "LoadBalancer",
                "loadBalancerClass": "example.com/l4",
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
                "externalTrafficPolicy": "Local",
                "nodePorts": {"grpc": 30443, "https": 30444},
            }
        },
        "seen": VALUES["hub"]
        | {
            "metrics": {
                "enabled": True,
                "perCluster": True,
                "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
                "prometheusRule": {"enabled": True},
                "dashboards": {"enabled": True},
            },
            "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
        },
        "aggregated": VALUES["hub"] | {"aggregation": {"enabled": True}},
        "own serving certificate": VALUES["hub"] | {"servingCertificate": {"existingSecret": "hub-tls"}},
        "settings": VALUES["hub"] | {"settings": {"agent_lifetime": "240h", "join_labels": ["region"], "brake_share": 0.5}},
        "more": VALUES["hub"]
        | {
            "extraEnv": [{"name": "HUB_IDENTITY_RATE", "value": "50"}],
            "extraVolumes": [{"name": "policy", "configMap": {"name": "audit-policy"}}],
            "extraVolumeMounts": [{"name": "policy", "mountPath": "/etc/muster/policy"}],
            "podLabels": {"example.com/team": "fleet"},
            "priorityClassName": "high",
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
        },
    },
    "spoke": {
        "least": VALUES["spoke"],
        "full": FULL["spoke"],
        "several processes": VALUES["spoke"] | {"replicas": 2},
        "one process": VALUES["spoke"] | {"leaderElection": {"enabled": False}},
        "hosted": VALUES["spoke"] | {"hosted": {"kubeconfigSecret": "managed"}, "attestation": {"enabled": True}},
        "rights of a hosted one": {"hosted": {"rightsOnly": True}, "attestation": {"enabled": True}},
        "attested": VALUES["spoke"] | {"attestation": {"enabled": True}},
        "without add-ons": VALUES["spoke"] | {"addOns": {"enabled": False}},
        "with its bootstrap": VALUES["spoke"] | {"bootstrap": {"kubeconfig": "apiVersion: v1\nkind: Config\n"}},
        "seen": VALUES["spoke"]
        | {
            "metrics": {
                "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
                "prometheusRule": {"enabled": True},
                "dashboards": {"enabled": True},
            }
        },
        "closed": VALUES["spoke"]
        | {"networkPolicy": {"enabled": True}, "bootstrap": {"kubeconfig": "kind: Config\n"}, "settings": {"rejoin": True}},
        "settings": VALUES["spoke"] | {"settings": {"cluster_healthcheck_period": "5m", "cluster_labels": {"region": "eu"}}},
        "anywhere": VALUES["spoke"] | {"securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}},
        "more": VALUES["spoke"]
        | {
            "fullnameOverride": "agent",
            "image": {"digest": "sha256:" + "0" * 64},
            "extraEnv": [{"name": "SPOKE_PROXY_URL", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "url"}}}],
            "extraVolumes": [{"name": "ca", "configMap": {"name": "external-ca"}}],
            "extraVolumeMounts": [{"name": "ca", "mountPath": "/spoke/ca"}],
            "priorityClassName": "high",
            "podLabels": {"example.com/team": "fleet"},
        },
    },
}
"""Each feature by itself, and all that go together."""


def render(chart: str, values: dict[str, Any], name: str = "muster") -> list[dict[str, Any]]:
    """Every object, those of hooks too. Raises HelmError for what the schema or a template refuses."""
    documents: list[dict[str, Any]] = json.loads(_rendered(chart, json.dumps(values), name))
    return documents


@cache
def _rendered(chart: str, values: str, name: str) -> str:
    with helm_python.Chart.load(CHARTS / chart) as loaded:
        loaded.validate_schema(json.loads(values))
        rendered = loaded.render(json.loads(values), name=name, namespace="fleet")
    texts = [text for path, text in sorted(rendered.items()) if path.endswith(".yaml")]
    return json.dumps([each for text in texts for each in yaml.load_all(text, Loader=yaml.CSafeLoader) if each])


def refusal_flaws(chart: str, wrong: Iterable[tuple[dict[str, Any], str]]) -> list[str]:
    """Values, beside the least ones, that are rendered or refused without the pattern."""
    flaws = []
    for values, pattern in wrong:
        try:
            render(chart, VALUES[chart] | values)
        except helm_python.HelmError as error:
            if not re.search(pattern, str(error)):
                flaws.append(f"{values}: {error}")
        else:
            flaws.append(f"{values} is not refused")
    return flaws


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


def only(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    """The one of that kind, but for what is in the namespaces of add-ons."""
    [found] = [each for each in of_kind(documents, kind) if not each["metadata"]["name"].endswith("-addons")]
    return found


def pod_spec(documents: list[dict[str, Any]]) -> dict[str, Any]:
    [workload] = [document for document in documents if document["kind"] in {"Deployment", "StatefulSet"}]
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def pods_of(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The spec of every pod that comes of it, those of hooks too."""
    return [
        document["spec"] if document["kind"] == "Pod" else document["spec"]["template"]["spec"]
        for document in documents
        if document["kind"] in {"Pod", "Deployment", "StatefulSet", "Job"}
    ]


def environment(documents: list[dict[str, Any]]) -> dict[str, Any]:
    [container] = pod_spec(documents)["containers"]
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in container["env"]}


def plain(variables: dict[str, Any]) -> dict[str, str]:
    """Those whose value stands in the manifest."""
    return {name: value for name, value in variables.items() if isinstance(value, str)}
