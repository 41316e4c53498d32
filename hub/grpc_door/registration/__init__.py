"""The Registration service."""
