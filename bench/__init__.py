"""Benchmarks and what they last measured; see README.md beside this file."""
