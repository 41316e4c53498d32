"""Certificate records, orders to renew, and revocation lists."""
