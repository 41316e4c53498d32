"""Compiles queries and conditions to SQL."""
