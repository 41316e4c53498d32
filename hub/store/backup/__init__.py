"""Backups: all rows in one file, and back."""
