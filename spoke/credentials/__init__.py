"""Stored credentials of an agent: its secrets, their kubeconfigs and CAs, the owner's secret, and the mirrored directory."""
