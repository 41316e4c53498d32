"""Where the keys of the hub's CAs lie."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Protocol

from hub.api.certificateauthorities.authority import AuthorityId


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A CA's certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


class KeyPlace(Protocol):
    """One place, the same for all replicas or this one's. Everything raises MusterError."""

    async def find(self, authority: AuthorityId) -> KeyPair | None:
        """None: it is not there."""

    async def offered(self, known: Collection[AuthorityId]) -> KeyPair | None:
        """The newest CA that lies there and is not `known`: an operator put it there, or a leader that was killed then."""

    async def keep(self, authority: AuthorityId, pair: KeyPair) -> None:
        """From now on `find` has it, on every replica. Keeping it twice is keeping it once."""

    async def forget(self, authority: AuthorityId) -> None:
        """Nothing happens when it is not there, or is not ours to remove."""

    @property
    def refusal(self) -> str | None:
        """Why nothing can be kept here, and what an operator does instead; None: it can."""
