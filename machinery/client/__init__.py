"""Client for the Kubernetes API: JSON documents over `kubernetes.aio`, and a reflector with back-off.

It uses no typed models, because importing `CoreV1Api` needs more memory than all other libraries of an agent together. It
contains no rules of kinds; adapters such as `spoke.cluster` interpret the documents.
"""
