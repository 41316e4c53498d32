"""Optional parts of the hub. Each is installed by `hub.serve` and does nothing unless its settings enable it."""
