"""Objects of a hollow control plane: the controller-manager's pod, the CA on its host, and cluster-info."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from hollow.objects import ClusterShape, Document

PKI = "/etc/kubernetes/pki"
CA_CERTIFICATE, CA_KEY = f"{PKI}/ca.crt", f"{PKI}/ca.key"
MANAGER = "kube-controller-manager"
NAMESPACE, INFO_NAMESPACE, INFO = "kube-system", "kube-public", "cluster-info"


def manager_name(shape: ClusterShape) -> str:
    """Name of the pod, as kubelets name static pods."""
    return f"{MANAGER}-{shape.name}-node-0"


def manager_pod(shape: ClusterShape) -> Document:
    """The controller-manager's pod on the first node, with kubeadm's flags and mounts."""
    flags = ("--use-service-account-credentials=true", f"--cluster-signing-cert-file={CA_CERTIFICATE}")
    container = {
        "name": MANAGER,
        "image": f"registry.k8s.io/{MANAGER}:{shape.version}",
        "command": [MANAGER, *flags, f"--cluster-signing-key-file={CA_KEY}"],
        "volumeMounts": [{"name": "k8s-certs", "mountPath": PKI, "readOnly": True}],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": "k8s-certs", "hostPath": {"path": PKI, "type": "DirectoryOrCreate"}}],
        "hostNetwork": True,
        "nodeName": f"{shape.name}-node-0",
        "priorityClassName": "system-node-critical",
        "tolerations": [{"effect": "NoExecute", "operator": "Exists"}],
    }
    metadata = {
        "name": manager_name(shape),
        "namespace": NAMESPACE,
        "labels": {"component": MANAGER, "tier": "control-plane"},
    }
    status = {"phase": "Running", "containerStatuses": [{"name": MANAGER, "ready": True, "restartCount": 0}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status}


def restarted(pod: Mapping[str, Any]) -> Document:
    """The pod after a restart of its container."""
    [status] = pod["status"]["containerStatuses"]
    again = {**status, "restartCount": int(status["restartCount"]) + 1}
    return {**pod, "status": {**pod["status"], "containerStatuses": [again]}}


def cluster_info(server: str, authority: bytes) -> Document:
    """cluster-info as kubeadm publishes it: a kubeconfig without a user, in JSON, which is valid YAML."""
    cluster: dict[str, Any] = {"server": server, "certificate-authority-data": base64.b64encode(authority).decode()}
    kubeconfig = {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}]}
    metadata = {"name": INFO, "namespace": INFO_NAMESPACE}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"kubeconfig": json.dumps(kubeconfig)}}
