"""Paths without objects: revocation lists, log level."""
