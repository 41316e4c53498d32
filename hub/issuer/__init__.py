"""Adapter: certificate issuers, such as the hub's CAs, and the storage of CA keys."""
