"""Adapter: certificate issuers, first of all the hub's CAs, and the keys of ServiceAccount tokens."""

from hub.issuer.chain import IssuerChain
from hub.issuer.local import LocalIssuer, ServingNames
from hub.issuer.rotating import RotatingIssuer
from hub.issuer.tokens import TokenKey, exchange_token_keys, make_token_key, read_token_keys

__all__ = [
    "IssuerChain",
    "LocalIssuer",
    "RotatingIssuer",
    "ServingNames",
    "TokenKey",
    "exchange_token_keys",
    "make_token_key",
    "read_token_keys",
]
