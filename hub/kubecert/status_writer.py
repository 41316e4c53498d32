"""Writes the cert agent's status to the CredentialIssuer, on the leader only."""

from collections.abc import Callable

from hub.api.credentialissuers import Strategy
from hub.kubecert.controller import NAME, Book
from hub.ports import Store
from hub.registry import logins
from machinery.errors import NotLeaderError


class IssuerBook(Book):
    """`leads`: whether this replica leads now. `lead` sets the fenced store of the newest term."""

    def __init__(self, store: Store, api_version: str, leads: Callable[[], bool]) -> None:
        self._store = store
        self._api_version = api_version
        self._leads = leads
        self._fenced: Store | None = None

    def lead(self, fenced: Store) -> None:
        self._fenced = fenced

    def leads(self) -> bool:
        return self._fenced is not None and self._leads()

    async def look(self) -> None:
        await self._store.read(logins.find_credential_issuer)

    async def tell(self, strategy: Strategy) -> None:
        if self._fenced is None:
            raise NotLeaderError("another replica tells it")
        await self._fenced.run(logins.record_strategy, strategy, self._api_version, f"system:hub:{NAME}")
