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
_FULL: dict[str, dict[str, Any]] = {
    "hub": {
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
        "tolerations": [{"key": "hub", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {}},
    },
    "spoke": {
        "bootstrap": {"existingSecret": "east", "furtherSecrets": ["west", "north"]},
        "hosted": {"kubeconfigSecret": "managed"},
        "externalServerURLs": ["https://one.example.com:6443", "https://two.example.com:6443"],
        "addOns": {"enabled": False},
        "tolerations": [{"operator": "Exists"}],
    },
}
FULL = {
    chart: VALUES[chart]
    | {"podAnnotations": {"example.com/note": "x"}, "nodeSelector": {"kubernetes.io/os": "linux"}}
    | {"serviceAccount": {"name": "other", "annotations": {"example.com/role": chart}}}
    | values
    for chart, values in _FULL.items()
}
BARE = VALUES["hub"] | {"adminKubeconfig": {"enabled": False}}
"""A hub that asks the cluster that it runs in for nothing."""
_SHARED = {"database": {"existingSecret": "hub-database"}, "keys": {"existingSecret": "hub-keys"}}
_TWO_HOSTS = {"advertise": {"grpc": "agents.example.com:443", "https": "api.example.com:443"}}
_DIGEST = {"digest": "sha256:" + "0" * 64}
_NO_IDS = {"securityContext": {"runAsUser": None, "runAsGroup": None, "fsGroup": None}}
_BACKUP = {"enabled": True, "passphraseSecret": "hub-backup"}
_STORE = {"image": "aws", "uploadCommand": ["put"], "downloadCommand": ["get"], "env": [{"name": "BUCKET", "value": "b"}]}
_SEEN = {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}
_MONITOR = {"enabled": True, "labels": {"release": "prometheus"}}
_MORE = {"priorityClassName": "high", "podLabels": {"example.com/team": "fleet"}}
_BESIDE: dict[str, dict[str, dict[str, Any]]] = {
    "hub": {
        "least": {},
        "full": FULL["hub"],
        "bare": BARE,
        "named": {"fullnameOverride": "fleet-hub", "image": _DIGEST},
        "database by url": {"database": {"url": "postgresql+psycopg://hub:secret@db/hub"}},
        "no volume": _SHARED | {"persistence": {"enabled": False}},
        "apart": _SHARED | {"replicas": 2, "antiAffinity": "hard", "podDisruptionBudget": {"enabled": False}},
        "anywhere": _NO_IDS,
        "ingress": _TWO_HOSTS | {"ingress": {"enabled": True, "className": "nginx"}},
        "gateway of its own": {"gateway": {"enabled": True, "className": "envoy"}},
        "gateway of others": _TWO_HOSTS
        | {"gateway": {"enabled": True, "routeVersion": "v1alpha2", "parentRefs": [{"name": "edge", "namespace": "infra"}]}},
        "backed up": {"backup": _BACKUP},
        "backed up elsewhere": _SHARED | {"backup": _BACKUP | _STORE, "settings": {"login_rate": 5}},
        "restored": {"backup": _BACKUP, "restore": {"file": "hub-1.zip", "replace": True, "args": ["--readopt=never"]}},
        "downloaded": _SHARED | {"backup": _STORE, "restore": {"file": "hub-1.zip"}},
        "moved": _SHARED | {"restore": {"fromSQLite": True}},
        "closed": {
            "networkPolicy": {
                "enabled": True,
                "from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
                "egress": [{"ports": [{"port": 5432}], "to": [{"podSelector": {}}]}],
            }
        },
        "load balancer": {
            "service": {
                "type": "LoadBalancer",
                "loadBalancerClass": "example.com/l4",
                "loadBalancerSourceRanges": ["10.0.0.0/8"],
                "externalTrafficPolicy": "Local",
                "nodePorts": {"grpc": 30443, "https": 30444},
            }
        },
        "seen": {
            "metrics": {"enabled": True, "perCluster": True, "serviceMonitor": _MONITOR, **_SEEN},
            "networkPolicy": {"enabled": True, "metricsFrom": [{"namespaceSelector": {}}]},
        },
        "aggregated": {"aggregation": {"enabled": True}},
        "own serving certificate": {"servingCertificate": {"existingSecret": "hub-tls"}},
        "settings": {"settings": {"agent_lifetime": "240h", "join_labels": ["region"], "brake_share": 0.5}},
        "more": _MORE
        | {
            "extraEnv": [{"name": "HUB_IDENTITY_RATE", "value": "50"}],
            "extraVolumes": [{"name": "policy", "configMap": {"name": "audit-policy"}}],
            "extraVolumeMounts": [{"name": "policy", "mountPath": "/etc/muster/policy"}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
            ],
        },
    },
    "spoke": {
        "least": {},
        "full": FULL["spoke"],
        "several processes": {"replicas": 2},
        "one process": {"leaderElection": {"enabled": False}},
        "hosted": {"hosted": {"kubeconfigSecret": "managed"}, "attestation": {"enabled": True}},
        "attested": {"attestation": {"enabled": True}},
        "without add-ons": {"addOns": {"enabled": False}},
        "with its bootstrap": {"bootstrap": {"kubeconfig": "apiVersion: v1\nkind: Config\n"}},
        "seen": {"metrics": {"podMonitor": _MONITOR, **_SEEN}},
        "closed": {
            "networkPolicy": {"enabled": True},
            "bootstrap": {"kubeconfig": "kind: Config\n"},
            "settings": {"rejoin": True},
        },
        "settings": {"settings": {"cluster_healthcheck_period": "5m", "cluster_labels": {"region": "eu"}}},
        "anywhere": _NO_IDS,
        "more": _MORE
        | {
            "fullnameOverride": "agent",
            "image": _DIGEST,
            "extraEnv": [{"name": "SPOKE_PROXY_URL", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "url"}}}],
            "extraVolumes": [{"name": "ca", "configMap": {"name": "external-ca"}}],
            "extraVolumeMounts": [{"name": "ca", "mountPath": "/spoke/ca"}],
        },
    },
}
MATRIX = {chart: {name: VALUES[chart] | values for name, values in beside.items()} for chart, beside in _BESIDE.items()}
MATRIX["spoke"]["rights of a hosted one"] = {"hosted": {"rightsOnly": True}, "attestation": {"enabled": True}}
"""Each feature by itself, and all that go together."""


def render(chart: str, values: dict[str, Any], name: str = "muster") -> list[dict[str, Any]]:
    """Every object, those of hooks too. Raises HelmError for what the schema or a template refuses."""
    return list(json.loads(_rendered(chart, json.dumps(values), name)))


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
    return dict(workload["spec"]["template"]["spec"])


def pods_of(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The spec of every pod that comes of it, those of hooks too."""
    jobs = [each["spec"]["jobTemplate"] for each in documents if each["kind"] == "CronJob"]
    specs = [each["spec"] for each in [*documents, *jobs] if "spec" in each]
    pods = [spec["template"]["spec"] for spec in specs if "template" in spec]
    return [*pods, *(document["spec"] for document in documents if document["kind"] == "Pod")]


def environment(documents: list[dict[str, Any]]) -> dict[str, Any]:
    [container] = pod_spec(documents)["containers"]
    return {variable["name"]: variable.get("value", variable.get("valueFrom")) for variable in container["env"]}


def plain(variables: dict[str, Any]) -> dict[str, str]:
    """Those whose value stands in the manifest."""
    return {name: value for name, value in variables.items() if isinstance(value, str)}
