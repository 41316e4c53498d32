"""Use cases and declarations, by resource. A use case is a plain function over a transaction, without await."""
