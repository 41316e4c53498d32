"""Stepwise deletion of clusters and namespaces."""
