"""Get and list."""
