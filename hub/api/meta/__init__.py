"""Documents, keys, changes, and the fields and sort orders of queries."""
