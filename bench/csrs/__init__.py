"""Mutated certificate signing requests against the hub's own decisions. `python -m bench.csrs` runs and counts."""
