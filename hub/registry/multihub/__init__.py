"""The owner of a cluster's agent: owners, epochs, moves, leaving."""
