"""Base class of reconcilers that handle many keys in one transaction, because a commit costs more than a step."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from hub.controllers.delaying_queue import AWAY, GIVEN_UP
from hub.ports import Store, Transaction
from machinery.errors import NotFoundError
from machinery.runtime.controller import Reconciler

TOGETHER = "waiting"
"""The only key of a batched reconciler's queue; names wait in the reconciler."""
AT_MOST = 50
Committed = Callable[[Any], None]
"""Called with the result of a step after its commit."""


class Batched(Reconciler[str]):
    """Runs the steps of up to `AT_MOST` waiting names in one transaction. If it fails, each name is retried alone.

    `committed`: called with each step's result that is not None.
    """

    def __init__(self, store: Store, committed: Committed | None = None) -> None:
        self._store = store
        self._committed = committed
        self._waiting: dict[str, None] = {}

    def step(self, tx: Transaction, name: str) -> object:
        """One name's step; idempotent. A NotFoundError ends it, because the object is gone."""
        raise NotImplementedError

    def prepared(self, tx: Transaction) -> Callable[[str], object]:
        """The step function for all names of a transaction, with their shared data."""
        return partial(self.step, tx)

    def read_ahead(self, tx: Transaction, names: Sequence[str]) -> None:
        """Read the objects of these steps together, if they are known in advance."""

    def wants(self, name: str) -> None:
        """Add `name` to the next step; the caller enqueues TOGETHER."""
        self._waiting[name] = None

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        """Raises the error of the last name that failed; failed names stay in the queue."""
        names = tuple(self._waiting)[:AT_MOST]
        for name in names:
            del self._waiting[name]
        failure = await self._attempt(names)
        if failure is not None and len(names) > 1:
            failure = await self._each(names)
        elif failure is not None:
            self._waiting.setdefault(names[0])
        if failure is not None:
            raise failure
        return timedelta() if self._waiting else None

    async def _attempt(self, names: Sequence[str]) -> Exception | None:
        try:
            results = await self._store.run(self._steps, names)
        except Exception as error:  # noqa: BLE001 - told to the controller, which retries and logs
            return error
        self._tell(results)
        return None

    async def _each(self, names: Sequence[str]) -> Exception | None:
        """Run the names one by one. Returns the last failure. Stops after GIVEN_UP consecutive failures of the store."""
        last, away = None, 0
        for place, name in enumerate(names):
            failure = await self._attempt((name,))
            away = away + 1 if isinstance(failure, AWAY) else 0
            if failure is None:
                continue
            self._waiting.setdefault(name)
            last = failure
            if away == GIVEN_UP:
                self._waiting |= dict.fromkeys(names[place + 1 :])
                break
        return last

    def _tell(self, results: Sequence[object]) -> None:
        if self._committed is not None:
            for result in results:
                self._committed(result)

    def _steps(self, tx: Transaction, names: Sequence[str]) -> list[object]:
        self.read_ahead(tx, names)
        step, results = self.prepared(tx), []
        for name in names:
            try:
                results.append(step(name))
            except NotFoundError:
                continue
        return [result for result in results if result is not None]
