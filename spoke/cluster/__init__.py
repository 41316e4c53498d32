"""Adapter: the managed cluster over its Kubernetes API. Not for judging what it reads: that is `spoke.domain`'s."""

from spoke.cluster.attestation import ServiceAccountAttest
from spoke.cluster.events import KubeEvents
from spoke.cluster.kubernetes_cluster import KubeCluster

__all__ = ["KubeCluster", "KubeEvents", "ServiceAccountAttest"]
