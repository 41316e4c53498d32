"""Operators' logins, and the CredentialIssuer."""
