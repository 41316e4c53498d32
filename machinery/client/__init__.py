"""Client for the Kubernetes API: JSON documents over `kubernetes.aio`, and a reflector with back-off.

No typed models: importing `CoreV1Api` costs an agent more than all its other libraries together. No rules of kinds: the
adapters in `spoke.cluster` and `spoke.credentials` interpret nodes and claims.
"""
