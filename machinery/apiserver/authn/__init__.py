"""Authentication of requests: one authenticator per kind of credential, and their chain."""
