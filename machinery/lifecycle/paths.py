"""Whether all paths are installed. Until then a missing path is "not yet", not "not found".

Garbage collectors act on a 404. Each part that installs paths therefore announces them first and confirms them later.
"""

from collections.abc import Callable

from machinery.lifecycle.signals import LifecycleSignal


class PathsInstalled:
    """Signals `complete` when it is sealed and all announced paths are installed."""

    def __init__(self, complete: LifecycleSignal) -> None:
        self._complete = complete
        self._missing: set[str] = set()
        self._names: set[str] = set()
        self._sealed = False

    def expect(self, name: str) -> Callable[[], None]:
        """Announce paths; call the result when they are installed. Raises ValueError (duplicate), RuntimeError once sealed."""
        if name in self._names:
            raise ValueError(f'paths named "{name}" are expected already')
        if self._sealed:
            raise RuntimeError(f'paths named "{name}" come too late: the server is prepared')
        self._names.add(name)
        self._missing.add(name)

        def installed() -> None:
            self._missing.discard(name)
            self._judge()

        return installed

    def seal(self) -> None:
        """Reject further announcements."""
        self._sealed = True
        self._judge()

    def _judge(self) -> None:
        if self._sealed and not self._missing:
            self._complete.signal()
