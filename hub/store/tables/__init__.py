"""Tables without documents, one module each."""
