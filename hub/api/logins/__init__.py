"""Authenticators, logins, and the CredentialIssuer."""
