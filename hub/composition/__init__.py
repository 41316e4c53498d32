"""The sections from which `hub.serve` assembles a hub. Each section opens some parts of the hub and returns them."""
