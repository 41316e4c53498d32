"""Ports of the agent's rules and controllers, as protocols. Adapters implement the ports; `spoke/app.py` connects both."""
