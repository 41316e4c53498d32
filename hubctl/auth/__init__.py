"""Kubeconfigs, and the credentials of their users."""
