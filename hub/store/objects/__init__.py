"""Objects of a transaction: their documents, and the rows in which they are stored."""
