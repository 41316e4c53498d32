"""Adapter: the managed cluster over its Kubernetes API. It reads; the rules are in `spoke.domain`."""
