"""Storage of private keys of the hub's CAs, and the Kubernetes cluster that hosts the hub."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hub.api.certificateauthorities.authority import AuthorityId


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Certificate and private key of a CA, both PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


class KeyPlace(Protocol):
    """Key storage that is either shared by all replicas or local to one. All methods raise MusterError."""

    async def find(self, authority: AuthorityId) -> KeyPair | None:
        """The stored pair, or None."""

    async def offered(self, known: Collection[AuthorityId]) -> KeyPair | None:
        """The newest stored CA that is not in `known`.

        An operator stored it, or a leader that was killed before it recorded the CA.
        """

    async def keep(self, authority: AuthorityId, pair: KeyPair) -> None:
        """Store the pair, so that `find` returns it on every replica. Idempotent."""

    async def forget(self, authority: AuthorityId) -> None:
        """Delete the pair. Does nothing if it does not exist or the hub may not delete it."""

    @property
    def refusal(self) -> str | None:
        """The reason why this storage accepts no key and what an operator must do; None if it accepts keys."""


class KeySecret(Protocol):
    """A Secret of the cluster that the hub runs in. All methods raise MusterError."""

    async def read(self) -> Mapping[str, bytes]:
        """The entries of the Secret; empty if it does not exist."""

    async def write(self, changes: Mapping[str, bytes | None]) -> None:
        """Set these entries and delete those that are None. Other entries stay. Creates the Secret if it does not exist."""
