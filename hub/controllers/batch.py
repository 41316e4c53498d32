"""Many keys, one transaction: for steps that are short, where a commit costs more than the step."""

from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta

from hub.ports import Store, Transaction
from machinery.controller import Reconciler
from machinery.errors import NotFoundError

TOGETHER = "waiting"
"""The one key of a batched reconciler's queue; the names wait in the reconciler."""
AT_MOST = 50


class Batched(Reconciler[str]):
    """Takes up to `AT_MOST` waiting names through one transaction. Names that fail are retried alone, and hold up no other."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, None] = {}

    @abstractmethod
    def step(self, tx: Transaction, name: str) -> None:
        """One name's step, safe to repeat. A NotFoundError ends it: the object is gone."""

    def wants(self, name: str) -> None:
        """Puts `name` among those of the next step; the caller enqueues TOGETHER."""
        self._waiting[name] = None

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        """Raises the error of the last name that failed; the names that failed wait again."""
        names = tuple(self._waiting)[:AT_MOST]
        for name in names:
            del self._waiting[name]
        failure = await self._attempt(names)
        if failure is not None:
            raise failure
        return timedelta() if self._waiting else None

    async def _attempt(self, names: Sequence[str]) -> Exception | None:
        try:
            await self._store.run(self._steps, names)
        except Exception as error:  # noqa: BLE001 - told to the controller, which retries and logs
            if len(names) == 1:
                self._waiting.setdefault(names[0])
                return error
        else:
            return None
        failures = [await self._attempt((name,)) for name in names]
        return next((failure for failure in reversed(failures) if failure), None)

    def _steps(self, tx: Transaction, names: Sequence[str]) -> None:
        for name in names:
            try:
                self.step(tx, name)
            except NotFoundError:
                continue
