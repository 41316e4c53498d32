"""Renews the serving certificate of both doors well before its end. It runs on every replica."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial

from hub.controllers.builder import PERIODIC
from machinery.runtime.controller import Controller, Reconciler
from machinery.runtime.scheduler import Timetable
from machinery.runtime.tasks import GuardedTasks

NAME = "serving-certificate"
PERIOD = timedelta(hours=12)


class ServingCertificate(Reconciler[str]):
    """`renew` checks the certificate and replaces it when due."""

    def __init__(self, renew: Callable[[], None]) -> None:
        self._renew = renew

    async def reconcile(self, key: str) -> timedelta | None:  # noqa: ARG002 - there is only one
        self._renew()
        return None


def start(renew: Callable[[], None], tasks: GuardedTasks, timetable: Timetable) -> None:
    """Run the controller until `tasks` end."""
    controller = Controller(NAME, ServingCertificate(renew))
    tasks.start(NAME, controller.run())
    timetable.every(PERIOD, partial(controller.enqueue, PERIODIC), name=NAME, jitter=0.25)
