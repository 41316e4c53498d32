"""The fenced store of controllers: reads always work, writes work only while this replica leads in the given term.

If this replica does not lead, `run` fails before it sends a statement. Otherwise the transaction checks the term again and
locks it until the commit. So a process that was suspended before the check and has lost its term commits nothing. Code that
writes on every replica (doors, heartbeats) uses the store itself.
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
    """A store for the controllers of one leader term. Its writes fail after the end of the term."""

    def __init__(self, store: Store, leadership: Leadership, term: int) -> None:
        self._store = store
        self._leadership = leadership
        self._term = term

    @property
    def leads(self) -> bool:
        return self._leadership.term == self._term

    async def run(self, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Like `Store.run`. Also raises NotLeaderError if this replica does not lead in this term; then nothing was written."""
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

    def subscribe_to_revocations(self, wake: Callable[[], None]) -> AbstractContextManager[Callable[[], bool]]:
        return self._store.subscribe_to_revocations(wake)

    def subscribe_to_sessions(self, wake: Callable[[], None]) -> AbstractContextManager[Callable[[], bool]]:
        return self._store.subscribe_to_sessions(wake)

    async def check(self) -> None:
        await self._store.check()

    async def close(self) -> None:
        """No-op: the code that opened the store closes it."""
