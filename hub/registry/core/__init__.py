"""Namespaces, ServiceAccounts, Leases, roles and bindings."""
