"""Adapter: the managed cluster over its Kubernetes API. Not for judging what it reads: that is `spoke.domain`'s."""

from spoke.cluster.attesting import ServiceAccountAttest
from spoke.cluster.events import KubeEvents
from spoke.cluster.kube import KubeCluster

__all__ = ["KubeCluster", "KubeEvents", "ServiceAccountAttest"]
