"""Commands about clusters: join, accept, move, taint, diagnose."""
