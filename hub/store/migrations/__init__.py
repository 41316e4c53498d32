"""Schema migrations. Steps are only appended; a released step is never edited."""
