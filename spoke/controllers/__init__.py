"""Controllers of a session: one reconciler per file."""
