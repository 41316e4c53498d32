"""Parts that all programs share, without rules of the hub or the agent."""
