"""What all programs share and what has no rule of the hub or the agent."""
