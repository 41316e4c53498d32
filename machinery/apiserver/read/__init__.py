"""Requests that read: get, list and watch."""
