"""Adapter: the hub's certificate authority, and the keys of its tokens."""

from hub.issuer.local import LocalIssuer, ServingNames
from hub.issuer.tokens import open_token_keys

__all__ = ["LocalIssuer", "ServingNames", "open_token_keys"]
