"""Compiles list queries and filter expressions (`hub.api.query.expressions.Where`) to SQL."""
