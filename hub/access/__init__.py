"""Authentication, authorization and request limits. Both doors apply them before they call a use case of `hub.registry`."""
