"""Reads and writes the tables that do not store API objects, one module for each subject."""
