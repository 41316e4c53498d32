"""Who comes in at the door, put together: the authenticators in their order, and the end of what a credential has open."""

import asyncio

from hub.access import BootstrapTokens
from hub.apiserver.authentication import (
    BootstrapTokenAuthenticator,
    CertificateAuthenticator,
    Identify,
    Listen,
    end_with_revocations,
)
from hub.ports import Store
from machinery.apiserver.authentication import BearerTokens, Chain, Presence, TokenUnion
from machinery.clock import Clock


class Entrance:
    """Client certificate first, then bearer token. `presence` is a filter; `tokens` is what reviews of tokens ask."""

    def __init__(self, store: Store, clock: Clock, identify: Identify, revocations: Listen | None) -> None:
        self._bootstrap = BootstrapTokens(store)
        self.presence = Presence(clock)
        self.tokens = TokenUnion(BootstrapTokenAuthenticator(self._bootstrap.identify))
        self.authenticator = Chain(CertificateAuthenticator(identify), BearerTokens(self.tokens))
        end_with_revocations(self.presence, revocations, self._bootstrap.listen)

    async def run(self) -> None:
        """Hears of credentials that end, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._bootstrap.run(), name="revoked-tokens")
