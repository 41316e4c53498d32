"""Looks that share a transaction: what is asked now and then, by many parts of a process at the same moment.

Each of them alone costs a snapshot, a thread that wakes up and a fight for the interpreter with the others', which is most of
what a hub does while nothing happens. So those of one moment are asked one after another, on one snapshot.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hub.ports import Transaction
from machinery.errors import MusterError, UnavailableError

MOMENT = 0.005
"""Seconds that the first one waits for others."""
Query = Callable[[Transaction], Any]
Read = Callable[[Query], Awaitable[Any]]
"""Runs a query on a snapshot of its own."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    found: Any = None
    error: Exception | None = None


class Looks:
    """Of one event loop."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._waiting: list[tuple[Query, asyncio.Future[Any]]] = []
        self._asking: set[asyncio.Task[None]] = set()

    async def join(self, query: Query) -> Any:
        """What the query returns. Raises what it raises, or why there is no snapshot."""
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
        except Exception as error:  # noqa: BLE001 - whoever asked is told
            if len(asked) > 1 and not isinstance(error, UnavailableError):  # one of them did that: none suffers for another
                for one in asked:
                    await self._ask([one])
                return
            outcomes = [_Outcome(error=error)] * len(asked)
        for (_, answer), outcome in zip(asked, outcomes, strict=True):
            if answer.done():
                continue  # nobody waits for it any more
            if outcome.error is None:
                answer.set_result(outcome.found)
            else:
                answer.set_exception(outcome.error)


def _outcome(query: Query, tx: Transaction) -> _Outcome:
    try:
        return _Outcome(query(tx))
    except MusterError as error:
        return _Outcome(error=error)  # its own word, which is nothing to the others
