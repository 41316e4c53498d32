"""Stored credentials of an agent: kubeconfigs, owner record, trust bundle."""
