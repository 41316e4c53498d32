"""Commands about credentials: certificate, revoke, login, audit."""
