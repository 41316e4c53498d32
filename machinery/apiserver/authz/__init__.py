"""Authorization by Kubernetes' RBAC, and its escalation checks."""
