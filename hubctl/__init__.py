"""hubctl: a client of the hub's HTTPS door. It imports nothing else of the hub, and starts fast: commands load when called."""
