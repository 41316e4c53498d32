"""Values and pure rules, by resource, without I/O, clock or framework."""
