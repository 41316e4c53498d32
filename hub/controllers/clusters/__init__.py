"""Controllers of ManagedClusters, cluster sets, profiles and namespaces."""
