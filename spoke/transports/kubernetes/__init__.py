"""Adapter: a hub over the Kubernetes API (driver `csr`). It makes the same calls as OCM's agent.

It works with this project's HTTPS door, a hub of Open Cluster Management, or any kube-apiserver with OCM's CRDs. Both drivers
use the rules for reports, renewal and trust in `spoke.domain`.
"""
