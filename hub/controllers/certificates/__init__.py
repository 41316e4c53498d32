"""Controllers of certificate requests, approval rules, CAs and authenticators."""
