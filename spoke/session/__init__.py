"""Sessions with the hub that holds the agent."""
