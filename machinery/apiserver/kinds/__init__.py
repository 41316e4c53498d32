"""Kinds of Kubernetes itself that hubs and hollow clusters serve."""
