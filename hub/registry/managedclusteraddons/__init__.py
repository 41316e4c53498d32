"""ManagedClusterAddOns: writes, health, tokens."""
