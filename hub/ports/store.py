"""The database: one transaction, and the asynchronous edge around all of them."""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from hub.api.meta.change import Change, Kind
from hub.api.objects.history import Volume
from hub.ports.authorities import AuthorityRecords
from hub.ports.identities import Bindings, CertificateRecords, Credentials
from hub.ports.liveness import AgentSessions, Heartbeats, Marks, Replicas, Transitions
from hub.ports.objects import ChangeLog, Objects
from hub.ports.records import AuditLog, Facts, Leaders
from hub.ports.trust import Trusts

P = ParamSpec("P")
T = TypeVar("T")


class Transaction(Protocol):
    """One unit of work. Nothing here is visible to others before it commits."""

    @property
    def now(self) -> datetime:
        """The database's time at the beginning of the transaction."""

    @property
    def objects(self) -> Objects: ...

    @property
    def changes(self) -> ChangeLog: ...

    @property
    def certificates(self) -> CertificateRecords: ...

    @property
    def authorities(self) -> AuthorityRecords: ...

    @property
    def credentials(self) -> Credentials: ...

    @property
    def bindings(self) -> Bindings: ...

    @property
    def heartbeats(self) -> Heartbeats: ...

    @property
    def transitions(self) -> Transitions: ...

    @property
    def marks(self) -> Marks: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def agent_sessions(self) -> AgentSessions: ...

    @property
    def trusts(self) -> Trusts: ...

    @property
    def facts(self) -> Facts: ...

    @property
    def audit(self) -> AuditLog: ...

    @property
    def leaders(self) -> Leaders: ...

    def volume(self) -> Volume:
        """How much room the database takes, and has."""


class Store(Protocol):
    """The database, from the event loop's side."""

    async def run(self, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a use case in one writing transaction and commits it. A cancelled caller does not tear it.

        Raises UnavailableError when the database cannot be written now.
        """

    async def read(self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a query on one consistent snapshot."""

    async def look(self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same, for a short query that is asked now and then, and can wait a moment: others may share its snapshot."""
        return await self.read(query, *args, **kwargs)

    async def wait_for_change(self, after: int, within: timedelta) -> int:
        """Returns the newest visible revision as soon as it is above `after`, or when the time is over."""

    def follow(self, after: int, kinds: Collection[Kind] | None = None) -> AsyncIterator[Sequence[Change]]:
        """Every change above `after`, in order, in batches, without end; an empty batch says that all is told up to now.

        Raises ExpiredError when `after` is compacted.
        """

    def told_of_revocations(self, wake: Callable[[], None]) -> AbstractContextManager[Callable[[], bool]]:
        """Within the block `wake` is called, on the event loop, soon after something was revoked, or a CA of the hub changed.

        On whichever replica, and perhaps more often. The block is given what says whether it can count on that now. It is a
        doorbell: whoever relies on it also looks by himself now and then, and often where it cannot be counted on.
        """

    def told_of_sessions(self, wake: Callable[[], None]) -> AbstractContextManager[Callable[[], bool]]:
        """Within the block `wake` is called, on the event loop, soon after another replica has written down new sessions.

        The block is given what says whether it can count on that now; where it cannot, it looks by itself, and `wake` is
        called whenever that begins.
        """

    async def check(self) -> None:
        """Raises UnavailableError unless the database answers."""

    async def close(self) -> None: ...


class Lifeline(Protocol):
    """A way to the database that load on the store cannot hold up: a connection and a thread of its own."""

    async def ask(self, use_case: Callable[[Leaders], T]) -> T:
        """One short transaction. Raises UnavailableError. A caller that is cancelled frees the connection for the next."""

    async def close(self) -> None: ...
