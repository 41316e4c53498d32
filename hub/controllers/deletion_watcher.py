"""Not a controller: how often those look who wait for what others let go of, and who wakes them when something goes."""

from collections.abc import Callable
from datetime import timedelta

from hub.api.meta.change import ChangeType, Document, Key, Kind

SHARE = 10
"""So much of the time that something has lasted may pass before it is seen that it is over."""
SELDOM = timedelta(minutes=1)


def pause(lasting: timedelta, shortest: timedelta) -> timedelta:
    """Until the next look at what has lasted for so long: from `shortest` on, and never more than SELDOM.

    What ends soon is seen soon. What may last for ever, such as a finalizer of somebody who will never answer, takes next to
    nothing of the database, however many objects it holds.
    """
    return min(max(lasting / SHARE, shortest), SELDOM)


class Waiting:
    """Namespaces whose content is waited for. `shortest`: until the first look after something was done about it."""

    def __init__(self, shortest: timedelta) -> None:
        self._shortest = shortest
        self._done: dict[str, timedelta] = {}
        """How long the wait had lasted when something was done last."""

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def begin(self, name: str) -> None:
        """To be said before the look: what goes meanwhile wakes, too."""
        self._done.setdefault(name, timedelta())

    def go_on(self, name: str, lasting: timedelta) -> None:
        """Something was done, and from now on something else is waited for."""
        self._done[name] = lasting

    def end(self, name: str) -> None:
        self._done.pop(name, None)

    def pause(self, name: str, lasting: timedelta) -> timedelta:
        return pause(lasting - self._done.get(name, timedelta()), self._shortest)


class DeletionWatcher:
    """Watches all that the feed sees: where something of a namespace has gone that is waited for, `wake` is told the name."""

    def __init__(self, *waiting: tuple[Waiting, Callable[[str], None]]) -> None:
        self._waiting = waiting

    def relisting(self) -> None:
        """Nothing: who waits is among those that are listed."""

    def listed(self, kind: Kind, key: Key, document: Document) -> None:
        """Nothing: it is there."""

    def changed(self, kind: Kind, key: Key, document: Document, change: ChangeType, actor: str) -> None:  # noqa: ARG002
        if change is ChangeType.DELETED:
            for names, wake in self._waiting:
                if key.namespace in names:
                    wake(key.namespace)
