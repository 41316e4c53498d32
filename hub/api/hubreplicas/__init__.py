"""Replicas of the hub, terms of the leader, the log level, and what a restore leaves to do."""
