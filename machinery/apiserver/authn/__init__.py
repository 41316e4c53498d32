"""Authentication of requests: one authenticator per kind of credential, and the chain of all authenticators."""
