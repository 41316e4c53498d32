"""Adapter: a hub over the Kubernetes API (driver `csr`), used as OCM's agent uses its hub.

It works with this project's HTTPS door, a hub of Open Cluster Management, or any kube-apiserver with OCM's CRDs. The rules for
reports, renewal and trust are in `spoke.domain`, the same for both drivers.
"""
