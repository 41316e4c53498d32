"""Adapter: a hub over the Kubernetes API (driver `csr`), used as OCM's agent uses its hub.

For our own HTTPS door, a hub of Open Cluster Management, or any kube-apiserver with its CRDs. It holds no rules: reports,
renewal and trust follow the same rules for both drivers, in `spoke.domain`.
"""
