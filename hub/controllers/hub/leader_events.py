"""Owns the Events of changes of leader: each term has one, by its own leader or, where that was too brief, by a later one."""

from datetime import timedelta

from hub.api.core.event import EventRecord
from hub.controllers import ACTOR
from hub.ports import Store
from hub.registry.hubreplicas import leader_terms as succession
from machinery.runtime.controller import Reconciler

NAME = "succession"
UP_TO_NOW = "terms"
"""The one key of the queue."""


class LeaderEvents(Reconciler[str]):
    """Of one term; nothing is told before `begins`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ours: tuple[int, EventRecord] | None = None

    def begins(self, term: int, ours: EventRecord) -> None:
        """`ours`: what there is to say of the term. The caller enqueues UP_TO_NOW."""
        self._ours = term, ours

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        if self._ours is not None:
            await self._store.run(succession.tell, *self._ours, f"{ACTOR}:{NAME}")
        return None
