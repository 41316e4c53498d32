"""Authentication, authorization and request limits. Both doors use it before they call a service of `hub.registry`."""
