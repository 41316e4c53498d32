"""Reconciler that handles many names in one transaction, because a commit costs more than a step."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from hub.ports import Store, Transaction
from machinery.errors import NotFoundError
from machinery.runtime.controller import Batch, BatchReconciler

UseCase = Callable[[Transaction, Any, str], object]
"""One name's step, with the actor; idempotent. A NotFoundError ends it, because the object is gone."""


class TransactionReconciler(BatchReconciler[str]):
    """`committed` is called after the commit with each step's result that is not None."""

    def __init__(self, store: Store, committed: Callable[[Any], None] = lambda _result: None) -> None:
        self._store = store
        self._committed = committed

    def prepared(self, tx: Transaction, names: Sequence[str]) -> Callable[[Any], object]:
        """Read what the steps of these names share, if it is known in advance. Returns their step function."""
        raise NotImplementedError

    async def reconcile_all(self, keys: Sequence[str]) -> Batch[str]:
        batch = Batch[str]()
        await batch.run(keys, self._commit)
        return batch

    async def _commit(self, names: Sequence[str]) -> Mapping[str, timedelta | None]:
        for result in await self._store.run(self._steps, names):
            if result is not None:
                self._committed(result)
        return dict.fromkeys(names)

    def _steps(self, tx: Transaction, names: Sequence[str]) -> Sequence[object]:
        step, results = self.prepared(tx, names), []
        for name in names:
            try:
                results.append(step(name))
            except NotFoundError:
                continue
        return results


class UseCaseReconciler(TransactionReconciler):
    """Calls `use_case` for each name. `read_ahead` reads the objects of all names together, if they are known in advance."""

    def __init__(
        self,
        store: Store,
        use_case: UseCase,
        actor: str,
        read_ahead: Callable[[Transaction, Sequence[str]], None] = lambda _tx, _names: None,
    ) -> None:
        super().__init__(store)
        self._use_case = use_case
        self._actor = actor
        self._read_ahead = read_ahead

    def prepared(self, tx: Transaction, names: Sequence[str]) -> Callable[[Any], object]:
        self._read_ahead(tx, names)
        return lambda name: self._use_case(tx, name, self._actor)
