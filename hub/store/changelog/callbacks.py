"""A set of callbacks that are called together."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Wake = Callable[[], None]


class Wakes:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._wakes: set[Wake] = set()

    @contextmanager
    def woken(self, wake: Wake) -> Iterator[None]:
        """Context manager in which `self.wake` calls `wake`."""
        self._wakes.add(wake)
        try:
            yield
        finally:
            self._wakes.discard(wake)

    def wake(self) -> None:
        for wake in tuple(self._wakes):
            wake()
