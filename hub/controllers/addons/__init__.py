"""Controllers of ManagedClusterAddOns."""
