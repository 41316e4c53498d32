"""Kubernetes' object conventions: conditions, selectors, timestamps, managed fields, bounded JSON and YAML."""
