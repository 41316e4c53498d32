"""Records one Event per leader term, by its own leader or, after a very short term, by a later leader."""

from datetime import timedelta

from hub.api.events import EventRecord
from hub.controllers import ACTOR
from hub.ports import Store
from hub.registry.hubreplicas import service as succession
from machinery.runtime.controller import Reconciler

NAME = "succession"
UP_TO_NOW = "terms"
"""The only key of the queue."""


class LeaderEvents(Reconciler[str]):
    """Records the Events up to the current term; nothing before `begins`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ours: tuple[int, EventRecord] | None = None

    def begins(self, term: int, ours: EventRecord) -> None:
        """Set the Event `ours` of the term. The caller enqueues UP_TO_NOW."""
        self._ours = term, ours

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        if self._ours is not None:
            await self._store.run(succession.record_leader_terms, *self._ours, f"{ACTOR}:{NAME}")
        return None
