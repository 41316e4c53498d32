"""What all resources of the registry use."""
