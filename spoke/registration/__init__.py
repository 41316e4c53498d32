"""Registration with a hub, and the flow that obtains certificates."""
