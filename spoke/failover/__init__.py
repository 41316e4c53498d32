"""Other hubs of the agent's list: candidates, standby registration, reconnects."""
