"""Controllers driven by hand."""

from datetime import timedelta
from typing import Any

from hub.api.certificates import Lifetimes
from hub.controllers.builder import ControllerBuilder, Since
from hub.extensions.settings import load
from hub.ports import Store
from machinery.runtime.clock import Clock, ManualClock
from machinery.runtime.controller import Controller
from tests.fakes.authority import WordIssuer


def builder_of(store: Store, clock: Clock | None = None, since: Since = lambda _tx: None, **settings: Any) -> ControllerBuilder:
    return ControllerBuilder(
        store, WordIssuer(), load(settings, None, {}), Lifetimes(), clock=clock or ManualClock(), since=since
    )


async def work(controller: Controller[Any], *keys: Any) -> timedelta | None:
    """Enqueues the keys and makes steps until no key is due. Returns the time until one is."""
    for key in keys:
        controller.enqueue(key)
    while (pause := controller.queue.pause()) == timedelta():
        await controller.step()
    return pause
