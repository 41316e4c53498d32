"""Certificate records, profiles and revocations."""
