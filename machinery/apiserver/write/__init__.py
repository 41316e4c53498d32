"""Requests that write: create, update, patch and delete."""
