"""Adapter: certificate issuers, first of all the hub's CAs, and the storage of their keys."""
