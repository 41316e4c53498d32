"""Kubernetes RBAC."""
