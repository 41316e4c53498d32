"""Adapter: the hub's certificate authority, and the keys of its tokens."""

from hub.issuer.local import LocalIssuer, ServingNames
from hub.issuer.tokens import TokenKey, exchange_token_keys, make_token_key, read_token_keys

__all__ = ["LocalIssuer", "ServingNames", "TokenKey", "exchange_token_keys", "make_token_key", "read_token_keys"]
