"""CertificateSigningRequests: states, strict checks, approval by rule, removal."""
