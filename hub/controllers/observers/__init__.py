"""Observers of the change log, which see every object before the event handlers."""
