"""ClusterProfiles, written from clusters, sets and bindings."""
