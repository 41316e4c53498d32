"""Commands about the hub itself: ca, drain, log-level, version."""
