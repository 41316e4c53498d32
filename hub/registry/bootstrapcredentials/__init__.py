"""The kind BootstrapCredential, its documents, and the use cases that create and revoke bootstrap credentials."""
