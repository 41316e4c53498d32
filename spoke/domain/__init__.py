"""Values and pure rules of the agent, without I/O, clock or framework."""
