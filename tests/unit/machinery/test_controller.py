"""What a controller counts of its steps."""

import asyncio
from contextlib import suppress
from datetime import timedelta

from machinery.controller import Controller
from machinery.errors import UnavailableError


class Flaky:
    """Fails for its first key."""

    def __init__(self) -> None:
        self.done = asyncio.Event()

    async def reconcile(self, key: str) -> timedelta | None:
        if key == "bad":
            raise UnavailableError("not now")
        self.done.set()
        return None


async def test_steps_are_counted_by_how_they_ended_from_nothing_on() -> None:
    work = Flaky()
    controller = Controller("flaky", work)
    assert dict(controller.outcomes) == {"success": 0, "error": 0}, "a rise from nothing is seen by no query"
    for key in ("bad", "good"):
        controller.enqueue(key)
    running = asyncio.create_task(controller.run())
    async with asyncio.timeout(5):
        await work.done.wait()
        while not controller.outcomes["success"]:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert controller.outcomes["success"] == 1
    assert controller.outcomes["error"] >= 1
    assert controller.seconds.count == controller.outcomes.total()
