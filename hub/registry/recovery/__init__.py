"""Restores, readoption, and recovery of agents with an expired certificate."""
