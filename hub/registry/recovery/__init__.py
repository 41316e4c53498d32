"""After a restore, or after a certificate has expired: restored hubs, readoption, recovery certificates."""
