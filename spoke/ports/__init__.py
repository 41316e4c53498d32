"""Ports of the agent's rules and controllers, as protocols. Adapters implement them; `app.py` connects them."""
