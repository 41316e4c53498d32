"""Benchmarks and their last figures. README.md in this directory describes them."""
