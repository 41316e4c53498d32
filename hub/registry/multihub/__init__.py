"""Which hub holds a cluster's agent: owners, epochs, moves, leaving."""
