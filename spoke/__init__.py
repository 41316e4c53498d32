"""The agent of one managed cluster."""
