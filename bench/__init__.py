"""Benchmarks and their last figures; see README.md in this directory."""
