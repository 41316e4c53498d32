"""Everything on record about one cluster, read in one transaction."""
