"""Adapters of the hub port: gRPC, and the Kubernetes API."""
