"""Schemas, columns and subresources of the kinds that the HTTPS door serves."""
