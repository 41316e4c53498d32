"""Values and pure rules, by resource; no I/O, no clock, no framework."""
