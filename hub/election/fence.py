"""The store as controllers get it: reading is everybody's, writing is the leader's, in its own term and no other.

A write is refused before it is sent when this replica does not lead. What was sent checks the term once more, inside its
transaction, and holds it until the commit: a process that was stopped between the two and continued an hour later commits
nothing. Doors, heartbeats and whatever else writes on every replica use the store itself.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from hub.api.meta.change import Change, Kind
from hub.ports import Store, Transaction
from machinery.election import Leadership
from machinery.errors import NotLeaderError

P = ParamSpec("P")
T = TypeVar("T")


class FencedStore(Store):
    """For what runs in one term."""

    def __init__(self, store: Store, leadership: Leadership, term: int) -> None:
        self._store = store
        self._leadership = leadership
        self._term = term

    async def run(self, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Raises NotLeaderError too, when this replica does not lead, or leads in another term: nothing was written."""
        self._leadership.require(self._term)
        try:
            return await self._store.run(self._fenced, use_case, args, kwargs)
        except NotLeaderError:
            self._leadership.was_fenced(self._term)
            raise

    def _fenced(self, tx: Transaction, use_case: Callable[..., T], args: tuple[Any, ...], kwargs: dict[str, Any]) -> T:
        tx.leaders.require(self._term)
        return use_case(tx, *args, **kwargs)

    async def read(self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._store.read(query, *args, **kwargs)

    async def look(self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._store.look(query, *args, **kwargs)

    async def wait_for_change(self, after: int, within: timedelta) -> int:
        return await self._store.wait_for_change(after, within)

    def follow(self, after: int, kinds: Collection[Kind] | None = None) -> AsyncIterator[Sequence[Change]]:
        return self._store.follow(after, kinds)

    def told_of_revocations(self, wake: Callable[[], None]) -> AbstractContextManager[Callable[[], bool]]:
        return self._store.told_of_revocations(wake)

    def told_of_sessions(self, wake: Callable[[], None]) -> AbstractContextManager[Callable[[], bool]]:
        return self._store.told_of_sessions(wake)

    async def check(self) -> None:
        await self._store.check()

    async def close(self) -> None:
        """Nothing: the store is not ours."""
