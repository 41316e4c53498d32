"""Storages: in memory, converted between versions, with admission."""
