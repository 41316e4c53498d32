"""Follows the change log once for all streams."""
