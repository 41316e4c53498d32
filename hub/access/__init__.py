"""Authentication, authorization and request limits, which both doors apply before they call a service of `hub.registry`."""
