"""Adapter: the Kubernetes cluster that stands before the hub, when the hub is one of its aggregated API servers."""

from hub.management.cluster import ManagementCluster

__all__ = ["ManagementCluster"]
