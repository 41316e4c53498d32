"""ManagedClusterAddOns: registrations, versions, health, labels and tokens."""
