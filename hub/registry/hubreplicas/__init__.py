"""Replicas and their sessions, drains, terms of the leader, the log level."""
