"""Paths beside the objects: revocation lists, log level."""
