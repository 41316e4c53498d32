"""Documents and their rows."""
