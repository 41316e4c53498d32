"""ManagedClusters: use cases, the kind's write paths, its declaration, and orders of operators to agents."""
