"""Use cases, by resource: plain functions over a transaction, without await."""
