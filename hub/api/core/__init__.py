"""Events, Namespaces, and the roles that every hub has."""
