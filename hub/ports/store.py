"""The database: one transaction, and the asynchronous interface to transactions."""

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
    """One unit of work. Its changes are invisible to others until it commits."""

    @property
    def now(self) -> datetime:
        """The database's time at the start of the transaction."""

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
        """Used and available space of the database."""


class Store(Protocol):
    """The database, for callers on the event loop."""

    async def run(self, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a use case in one writing transaction and commit it. Cancellation of the caller does not interrupt it.

        Raises UnavailableError when the database cannot be written now.
        """

    async def read(self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a query on one consistent snapshot."""

    async def look(self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `read`, for short periodic queries that can wait a moment: several may share one snapshot."""
        return await self.read(query, *args, **kwargs)

    async def wait_for_change(self, after: int, within: timedelta) -> int:
        """Return the newest visible revision as soon as it is above `after`, or when `within` has passed."""

    def follow(self, after: int, kinds: Collection[Kind] | None = None) -> AsyncIterator[Sequence[Change]]:
        """Yield all changes above `after`, in order, in endless batches; an empty batch means that no more are known now.

        Raises ExpiredError when `after` is compacted.
        """

    def told_of_revocations(self, wake: Callable[[], None]) -> AbstractContextManager[Callable[[], bool]]:
        """Within the block, call `wake` on the event loop soon after a revocation or a change of the hub's CAs on any replica.

        `wake` may be called more often. The block's value returns whether notifications arrive now. They can be lost: callers
        also poll, and more often while the value returns False.
        """

    def told_of_sessions(self, wake: Callable[[], None]) -> AbstractContextManager[Callable[[], bool]]:
        """Within the block, call `wake` on the event loop soon after another replica has recorded new sessions.

        The block's value returns whether notifications arrive now. While it returns False the caller polls; `wake` is called
        whenever that state begins.
        """

    async def check(self) -> None:
        """Raise UnavailableError unless the database answers."""

    async def close(self) -> None: ...


class Lifeline(Protocol):
    """Database access with its own connection and thread, which load on the store cannot delay."""

    async def ask(self, use_case: Callable[[Leaders], T]) -> T:
        """Run one short transaction. Raises UnavailableError. A cancelled caller frees the connection for the next one."""

    async def close(self) -> None: ...
