"""Controllers of acceptance and approval, issuance, CAs and authenticators."""
