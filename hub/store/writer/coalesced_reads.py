"""Periodic queries share one database snapshot.

Each separate query would cost a snapshot, a thread wake-up and contention for the interpreter lock, which are most of the load
of an idle hub. Queries that arrive within MOMENT run one after another on one snapshot.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hub.ports import Transaction
from machinery.errors import MusterError, UnavailableError

MOMENT = 0.005
"""Seconds for which the first query waits for other queries."""
Query = Callable[[Transaction], Any]
Read = Callable[[Query], Awaitable[Any]]
"""Runs a query on its own snapshot."""


class CoalescedReads:
    """Runs the periodic queries of one event loop together on one snapshot."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._waiting: list[tuple[Query, asyncio.Future[Any]]] = []
        self._asking: set[asyncio.Task[None]] = set()

    async def join(self, query: Query) -> Any:
        """Return the query's result. Raises the query's error, or the reason why there is no snapshot."""
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._waiting.append((query, answer))
        if len(self._waiting) == 1:
            loop.call_later(MOMENT, self._begin)
        return await answer

    def _begin(self) -> None:
        asked = [(query, answer) for query, answer in self._waiting if not answer.done()]
        self._waiting = []
        if asked:
            task = asyncio.create_task(self._ask(asked), name="looks")
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self, asked: Sequence[tuple[Query, asyncio.Future[Any]]]) -> None:
        try:
            outcomes = await self._read(lambda tx: [_outcome(query, tx) for query, _ in asked])
        except Exception as error:  # noqa: BLE001 - each caller gets it
            if len(asked) > 1 and not isinstance(error, UnavailableError):  # one query failed the shared read: run each alone
                for one in asked:
                    await self._ask([one])
                return
            outcomes = [(None, error)] * len(asked)
        for (_, answer), (found, failure) in zip(asked, outcomes, strict=True):
            if answer.done():
                continue  # cancelled
            if failure is None:
                answer.set_result(found)
            else:
                answer.set_exception(failure)


def _outcome(query: Query, tx: Transaction) -> tuple[Any, Exception | None]:
    try:
        return query(tx), None
    except MusterError as error:
        return None, error  # a refusal concerns only its own query
