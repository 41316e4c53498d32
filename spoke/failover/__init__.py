"""The agent's hub list: the choice of the owner, and the registration at the hubs that are not the owner."""
