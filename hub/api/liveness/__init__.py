"""Heartbeats, leases, coverage and the brake."""
