"""A Kubernetes-style API server over a storage port."""
