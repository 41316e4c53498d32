"""Who asks: authenticators of one kind of credential each, and the chain of them that a server asks."""

from machinery.apiserver.authentication.chain import BearerTokens, Chain, TokenUnion
from machinery.apiserver.authentication.identity import (
    CREDENTIAL_ID,
    IDENTITY,
    Identity,
    RequestAuthenticator,
    TokenAuthenticator,
)
from machinery.apiserver.authentication.presence import Presence

__all__ = [
    "CREDENTIAL_ID",
    "IDENTITY",
    "BearerTokens",
    "Chain",
    "Identity",
    "Presence",
    "RequestAuthenticator",
    "TokenAuthenticator",
    "TokenUnion",
]
