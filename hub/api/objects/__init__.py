"""Rules for objects of every kind: field ownership and history."""
