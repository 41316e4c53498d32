"""Controllers of ManagedClusters and of objects that belong to them."""
