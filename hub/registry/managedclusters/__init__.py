"""ManagedClusters: the kind's only write path, its declaration, and orders of operators to agents."""
