"""Ends the sessions of lost replicas, records one Event per leader term, and renews a replica's serving certificate."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

import structlog

from hub.api.events import EventRecord
from hub.api.hubreplicas import LOST_AFTER, could_report
from hub.controllers import ACTOR
from hub.controllers.builder import PERIODIC, ControllerBuilder, Since, Step
from hub.ports import Store, Transaction
from hub.registry.hubreplicas import service as replicas
from machinery.runtime.controller import Controller, Reconciler
from machinery.runtime.scheduler import Scheduler
from machinery.runtime.tasks import GuardedTasks

log = structlog.get_logger(__name__)

NAME = "replicas"


class LostReplicas(Reconciler[str]):
    """Ends the sessions of lost replicas. Checks often, and writes only if there are sessions to end.

    `since`: see Since. An outage of the database makes no replica lost: all replicas then have LOST_AFTER again to update
    their rows.
    """

    def __init__(self, store: Store, *, since: Since) -> None:
        self._store = store
        self._since = since

    async def reconcile(self, key: str) -> None:  # noqa: ARG002 - there is only one
        if await self._store.look(self._has_work):
            ended = await self._store.run(replicas.sweep)
            log.info("sessions of lost replicas ended", count=ended)

    def _has_work(self, tx: Transaction) -> bool:
        return could_report(self._since(tx), tx.now) and not replicas.is_swept(tx)


LEADER_EVENTS = "succession"


def register(builder: ControllerBuilder) -> None:
    lost = builder.add(NAME, LostReplicas(builder.store, since=builder.since))
    builder.every(LOST_AFTER / 2, lost, jitter=0)


def register_leader_events(builder: ControllerBuilder) -> Callable[[int, EventRecord], None]:
    """Returns a function to call with the number of a term that begins and with the term's Event.

    The leader of a term records its Event. If the term ends before that, a later leader records the Event.
    """
    begun: list[tuple[int, EventRecord]] = []

    async def record_terms(_key: str) -> None:
        await builder.store.run(replicas.record_leader_terms, *begun[-1], f"{ACTOR}:{LEADER_EVENTS}")

    controller = builder.add_step(LEADER_EVENTS, record_terms)

    def begin(term: int, event: EventRecord) -> None:
        begun.append((term, event))
        controller.enqueue(PERIODIC)

    return begin


SERVING_CERTIFICATE = "serving-certificate"
RENEWAL_CHECKS = timedelta(hours=12)


def start_serving_certificate(renew: Callable[[], None], tasks: GuardedTasks, scheduler: Scheduler) -> None:
    """Start the controller of the serving certificate, on each replica. It runs until `tasks` end.

    `renew` checks the certificate, and replaces it if necessary.
    """

    async def step(_key: str) -> None:
        renew()

    controller = Controller(SERVING_CERTIFICATE, Step(step))
    tasks.start(SERVING_CERTIFICATE, controller.run())
    scheduler.every(RENEWAL_CHECKS, partial(controller.enqueue, PERIODIC), name=SERVING_CERTIFICATE, jitter=0.25)
