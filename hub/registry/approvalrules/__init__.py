"""Deciding by rule, and the rules themselves."""
