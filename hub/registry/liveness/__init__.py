"""Heartbeats, coverage, the brake, and what follows from silence."""
