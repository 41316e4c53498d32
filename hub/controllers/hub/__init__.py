"""Controllers of the hub's own records: events, replicas, compaction, leader terms."""
