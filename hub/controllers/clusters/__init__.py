"""Controllers of ManagedClusters and of what belongs to them."""
