"""Revoking clusters, agents, serials and bootstrap credentials."""
