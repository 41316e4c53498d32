"""Intervals of checks for content that finalizers hold, and notification when such content is deleted."""

from collections.abc import Callable
from datetime import timedelta

from hub.api.meta.change import Kind
from machinery.meta.objects import ChangeType, Document, Key

SHARE = 10
"""The interval between checks is this fraction of the time waited so far."""
SELDOM = timedelta(minutes=1)


def pause(lasting: timedelta, shortest: timedelta) -> timedelta:
    """The interval between checks after waiting for `lasting`: at least `shortest`, at most SELDOM.

    The end of a short wait is noticed soon, and an endless wait, such as for a finalizer of a controller that is gone, costs
    the database next to nothing, however many objects it holds.
    """
    return min(max(lasting / SHARE, shortest), SELDOM)


class Waiting:
    """Namespaces whose content is waited for. `shortest`: the interval after progress."""

    def __init__(self, shortest: timedelta) -> None:
        self._shortest = shortest
        self._done: dict[str, timedelta] = {}
        """How long the deletion had lasted at the last progress."""

    def __contains__(self, name: str) -> bool:
        return name in self._done

    def begin(self, name: str) -> None:
        """Call it before the check, so that deletions during it cause another one."""
        self._done.setdefault(name, timedelta())

    def go_on(self, name: str, lasting: timedelta) -> None:
        """Note progress: the interval starts from `shortest` again."""
        self._done[name] = lasting

    def end(self, name: str) -> None:
        self._done.pop(name, None)

    def pause(self, name: str, lasting: timedelta) -> timedelta:
        return pause(lasting - self._done.get(name, timedelta()), self._shortest)


class DeletionWatcher:
    """Observer that calls `wake` with a waiting namespace when an object in it is deleted."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Waiting, Callable[[str], None]]] = []

    def watch(self, waiting: Waiting, wake: Callable[[str], None]) -> None:
        self._waiting.append((waiting, wake))

    def relisting(self) -> None:
        """No-op: waiting namespaces are listed again."""

    def listed(self, kind: Kind, key: Key, document: Document) -> None:
        """No-op: the object exists."""

    def changed(self, kind: Kind, key: Key, document: Document, change: ChangeType, actor: str) -> None:  # noqa: ARG002
        if change is ChangeType.DELETED:
            for names, wake in self._waiting:
                if key.namespace in names:
                    wake(key.namespace)
