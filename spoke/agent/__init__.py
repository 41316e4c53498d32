"""The agent's loop, leader election among its processes, and unregistration."""
