"""create, update, patch and delete."""
