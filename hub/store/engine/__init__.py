"""Engines, transactions, statements and errors of the two databases."""
