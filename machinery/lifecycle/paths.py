"""Whether all paths are installed: until then a missing one is not "gone", only "not yet".

Garbage collectors act on a 404. So whoever installs paths says here that it will, and again when it has.
"""

from collections.abc import Callable

from machinery.lifecycle.signals import LifecycleSignal


class PathsInstalled:
    """Signals `complete` once it is sealed and everything expected has been installed."""

    def __init__(self, complete: LifecycleSignal) -> None:
        self._complete = complete
        self._missing: set[str] = set()
        self._names: set[str] = set()
        self._sealed = False

    def expect(self, name: str) -> Callable[[], None]:
        """What to call when the paths of this name are there. Raises ValueError for a name taken, RuntimeError once sealed."""
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
        """Nothing more will be expected."""
        self._sealed = True
        self._judge()

    def _judge(self) -> None:
        if self._sealed and not self._missing:
            self._complete.signal()
