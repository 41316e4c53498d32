"""Leader election of the hub's replicas, and the fence against writes of a replica that no longer leads."""
