"""Bootstrap credentials and the attestation of a first registration."""
