"""Replicas of the hub, leader terms, the log level, and restores."""
