"""Sessions of the agent with its owner, the hub that the agent has chosen."""
