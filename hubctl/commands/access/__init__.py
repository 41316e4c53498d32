"""Commands about credentials and decisions: accept, certificate, revoke, ca, login, config."""
