"""Connections, requests and responses of the API server."""
