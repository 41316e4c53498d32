"""Documents, keys, changes, and how values are found and ordered in them."""
