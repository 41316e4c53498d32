"""Adapter: the managed cluster over its Kubernetes API. It reads; the rules are in `spoke.domain`."""

from spoke.cluster.attestation import ServiceAccountAttest
from spoke.cluster.events import KubeEvents
from spoke.cluster.kubernetes_cluster import KubeCluster

__all__ = ["KubeCluster", "KubeEvents", "ServiceAccountAttest"]
