"""Adapter: the Kubernetes cluster whose kube-apiserver aggregates the hub's API."""

from hub.management.cluster import ManagementCluster
from hub.management.secret import ClusterKeySecret

__all__ = ["ClusterKeySecret", "ManagementCluster"]
