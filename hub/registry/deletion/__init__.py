"""Deleting clusters and namespaces with everything in them."""
