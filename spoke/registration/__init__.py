"""Registering with a hub, and obtaining certificates."""
