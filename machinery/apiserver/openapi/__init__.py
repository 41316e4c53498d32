"""OpenAPI documents and discovery, generated from the `Resource` values that also serve the requests, so both always agree."""
