"""Controllers of the hub's own records: retention, replicas, leader terms, its serving certificate."""
