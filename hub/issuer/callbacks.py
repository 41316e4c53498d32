"""A thread-safe set of callbacks for changes of an issuer."""

from collections.abc import Callable
from threading import Lock


class Listeners:
    """The callbacks run in the thread that calls `tell`."""

    def __init__(self) -> None:
        self._all: tuple[Callable[[], None], ...] = ()
        self._lock = Lock()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Add a listener. Returns a function that removes it."""
        with self._lock:
            self._all = (*self._all, listener)

        def end() -> None:
            with self._lock:
                self._all = tuple(each for each in self._all if each is not listener)

        return end

    def tell(self) -> None:
        for listener in self._all:
            listener()
