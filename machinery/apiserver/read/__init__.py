"""get and list."""
