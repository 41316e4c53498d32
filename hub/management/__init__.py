"""Adapter: the Kubernetes cluster that stands before the hub, when the hub is one of its aggregated API servers."""

from hub.management.cluster import ManagementCluster
from hub.management.secret import ClusterKeySecret

__all__ = ["ClusterKeySecret", "ManagementCluster"]
