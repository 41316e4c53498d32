"""Queries and conditions, compiled to SQL."""
