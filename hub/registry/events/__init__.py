"""Events, of the hub and of agents."""
