"""Writes of any object: field owners, size limit, history."""
