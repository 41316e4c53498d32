"""Reconciler that handles many names in one transaction, because a commit costs more than a step."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from hub.ports import Store, Transaction
from machinery.errors import NotFoundError
from machinery.runtime.controller import Batch, BatchReconciler


class TransactionReconciler(BatchReconciler[str]):
    """Makes `step` for each name; it is idempotent, and a NotFoundError ends it, because the object is gone.

    `read_ahead`: reads what the steps of these names share, as far as it is known in advance; each step gets its result.
    `committed`: called after the commit with each step's result that is not None.
    """

    def __init__(
        self,
        store: Store,
        step: Callable[[Transaction, str, Any], object],
        read_ahead: Callable[[Transaction, Sequence[str]], object] = lambda _tx, _names: None,
        committed: Callable[[Any], None] = lambda _result: None,
    ) -> None:
        self._store = store
        self._step = step
        self._read_ahead = read_ahead
        self._committed = committed

    async def reconcile_all(self, keys: Sequence[str]) -> Batch[str]:
        batch = Batch[str]()

        async def commit(names: Sequence[str]) -> Mapping[str, timedelta | None]:
            for result in await self._store.run(self._steps, names):
                if result is not None:
                    self._committed(result)
            return dict.fromkeys(names)

        await batch.run(keys, commit)
        return batch

    def _steps(self, tx: Transaction, names: Sequence[str]) -> Sequence[object]:
        shared, results = self._read_ahead(tx, names), []
        for name in names:
            with suppress(NotFoundError):
                results.append(self._step(tx, name, shared))
        return results
