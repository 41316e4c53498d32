"""Commands about clusters and replicas: create, join, move, rotate, drain, addon, diagnose."""
