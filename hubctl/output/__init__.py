"""Tables, documents, templates and files."""
