"""Documents, kinds, and entries of the change log."""
