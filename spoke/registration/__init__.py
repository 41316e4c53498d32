"""Registration at a hub, and the flow that obtains certificates."""
