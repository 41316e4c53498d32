"""Reads the ConfigMap `kube-public/cluster-info` (kubeadm): the address and CA of the cluster's API server."""

import base64
import binascii
from dataclasses import dataclass

from hub.api.meta import document as doc
from machinery.errors import InvalidError
from machinery.meta import bounded_yaml as boundedyaml
from machinery.meta.bounded_yaml import YamlError
from machinery.meta.objects import Document

NAMESPACE, NAME, KEY = "kube-public", "cluster-info", "kubeconfig"


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """`authority`: PEM in base64, as in the ConfigMap."""

    server: str
    authority: str


def cluster_info(config_map: Document, server: str = "") -> ClusterInfo:
    """The first cluster entry; `server` overrides its server.

    Raises InvalidError; its message does not repeat the content, which may be long.
    """
    text = doc.mapping(config_map, "data").get(KEY)
    if not text:
        raise InvalidError(f'ConfigMap {NAMESPACE}/{NAME} has no key "{KEY}"')
    try:
        document = boundedyaml.load(str(text))
    except YamlError:
        document = None
    if not isinstance(document, dict):
        raise InvalidError(f'key "{KEY}" of ConfigMap {NAMESPACE}/{NAME} holds no kubeconfig')
    clusters = [entry.get("cluster") for entry in doc.sequence(document, "clusters") if isinstance(entry, dict)]
    found = next((cluster for cluster in clusters if isinstance(cluster, dict)), None)
    if found is None:
        raise InvalidError(f"the kubeconfig in ConfigMap {NAMESPACE}/{NAME} has no clusters")
    return ClusterInfo(server or str(found.get("server") or ""), _checked(str(found.get("certificate-authority-data") or "")))


def _checked(authority: str) -> str:
    try:
        base64.b64decode(authority, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidError(f"certificate-authority-data in ConfigMap {NAMESPACE}/{NAME} is not base64") from None
    return authority
