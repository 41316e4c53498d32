"""A store in memory that rings for revocations when a test says so, and not when one is written."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hub.store.wakes import Wake
from tests.fakes.memory_store import MemoryStore


class Bell(MemoryStore):
    """`told`: whether anybody may count on it."""

    def __init__(self, *, told: bool = True) -> None:
        super().__init__()
        self.told = told
        self.wakes: list[Wake] = []

    @contextmanager
    def told_of_revocations(self, wake: Wake) -> Iterator[Callable[[], bool]]:
        self.wakes.append(wake)
        yield lambda: self.told

    def ring(self) -> None:
        for wake in self.wakes:
            wake()
