"""Credentials of a kubeconfig's user."""
