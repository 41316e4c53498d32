"""Reads the ConfigMap `kube-public/cluster-info` (kubeadm): the address and CA of the cluster's API server."""

from dataclasses import dataclass

from hub.api.meta import document as doc
from machinery.client.kubeconfig_documents import decoded, entries_of, parse_document
from machinery.errors import InvalidError
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
        document = parse_document(str(text).encode(), f"in ConfigMap {NAMESPACE}/{NAME}")
    except InvalidError:
        raise InvalidError(f'key "{KEY}" of ConfigMap {NAMESPACE}/{NAME} holds no kubeconfig') from None
    clusters = [cluster for entry in entries_of(document, "clusters") if isinstance(cluster := entry.get("cluster"), dict)]
    if not clusters:
        raise InvalidError(f"the kubeconfig in ConfigMap {NAMESPACE}/{NAME} has no clusters")
    authority = str(clusters[0].get("certificate-authority-data") or "")
    decoded(authority, f"certificate-authority-data in ConfigMap {NAMESPACE}/{NAME}")
    return ClusterInfo(server or str(clusters[0].get("server") or ""), authority)
