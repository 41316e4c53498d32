"""What the agent does in a session: one reconciler per file."""
