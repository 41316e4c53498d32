"""Backup and restore of all rows in one file."""
