"""The change log, followed once for all streams."""
