"""Values and pure rules of the agent; no I/O, no clock, no framework."""
