"""Selectable fields, conditions and sort orders of queries about clusters."""
