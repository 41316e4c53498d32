"""Schema migrations: each step appended, never edited once it was released."""
