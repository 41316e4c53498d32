"""ManagedClusterSets, their bindings, and the managed namespaces of clusters."""
