"""The sections of a hub, in the order in which `hub.serve` assembles them. Each section opens some parts and returns them."""
