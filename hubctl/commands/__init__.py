"""One module per command, in groups."""
