"""The Kubernetes API as this project needs it: JSON documents over `kubernetes.aio`, and a reflector that never spins.

Not for typed models: importing `CoreV1Api` costs an agent more than all its other libraries together. Not for rules either:
what a node or a claim means is known to the adapters in `spoke.cluster` and `spoke.secrets`.
"""
