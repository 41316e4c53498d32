"""Requests to the hub's API, discovery and errors."""
