"""OpenAPI documents and discovery, generated from the same `Resource` values that serve the requests."""
