"""ManagedClusters: the one write path of the kind, and what belongs to a cluster."""
