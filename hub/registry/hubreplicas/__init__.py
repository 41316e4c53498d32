"""Replicas and their sessions, drains, leader terms, the log level."""
