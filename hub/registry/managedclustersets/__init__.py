"""ManagedClusterSets and what follows from them."""
