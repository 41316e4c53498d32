"""ManagedClusters: the document, admission, conditions, taints, transitions and removal."""
