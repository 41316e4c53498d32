"""The HTTPS door: the hub's resources on the generic API server, for operators, tools and agents of the csr driver."""
