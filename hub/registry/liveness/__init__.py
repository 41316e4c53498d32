"""Heartbeats, coverage, the brake, taints and stale clusters."""
