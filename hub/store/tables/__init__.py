"""One module per table that holds no documents."""
