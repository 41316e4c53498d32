"""CertificateSigningRequests: from submission to the signed certificate."""
