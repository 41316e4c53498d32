"""ClusterProfiles of SIG Multicluster."""
