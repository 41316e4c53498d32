"""Controllers that run during a session with a hub, and the watch of the cluster's API server."""
