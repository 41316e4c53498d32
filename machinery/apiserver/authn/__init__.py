"""Authentication of requests: one authenticator per kind of credential, and their chain."""

from machinery.apiserver.authn.chain import BearerTokens, Chain, TokenUnion
from machinery.apiserver.authn.credential_end import Presence
from machinery.apiserver.authn.identity import CREDENTIAL_ID, IDENTITY, Identity, RequestAuthenticator, TokenAuthenticator

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
