"""Probes, metrics, progress and events of the agent."""
