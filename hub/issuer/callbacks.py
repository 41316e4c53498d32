"""Who is told of each change of what issues; safe to use from several threads."""

from collections.abc import Callable
from threading import Lock


class Listeners:
    """Called in whatever thread tells them."""

    def __init__(self) -> None:
        self._all: tuple[Callable[[], None], ...] = ()
        self._lock = Lock()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Has `listener` called from now on. Returns what ends that."""
        with self._lock:
            self._all = (*self._all, listener)

        def end() -> None:
            with self._lock:
                self._all = tuple(each for each in self._all if each is not listener)

        return end

    def tell(self) -> None:
        for listener in self._all:
            listener()
