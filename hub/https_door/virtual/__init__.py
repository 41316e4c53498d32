"""Resources that are computed from records when they are read."""
