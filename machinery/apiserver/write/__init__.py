"""Create, update, patch and delete."""
