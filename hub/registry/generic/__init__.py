"""Declarations, write paths and schemas that all resources use."""
