"""hubctl: a client of the hub's HTTPS door. It imports no code of the hub, and loads a command only when it is called."""
