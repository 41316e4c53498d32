"""Tests the hub's decisions with mutated certificate signing requests. `python -m bench.csrs` runs them."""
