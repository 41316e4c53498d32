"""Connections, transactions of the two databases, statements and errors."""
