"""The order of a start and of a stop, in both modes."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial

import pytest
import structlog.testing

from machinery.lifecycle.health import Endpoint
from machinery.lifecycle.hooks import HookError
from machinery.lifecycle.server import Door, PreparedServer, Server, StopTimes
from machinery.lifecycle.startup import StartError
from machinery.runtime.clock import SystemClock
from tests.checks import check_refusals

Story = list[str]
BEFORE = ["MuxAndDiscoveryComplete", "HasBeenReady", "ShutdownInitiated"]
AFTER = {
    True: ["NotAcceptingNewRequest", "InFlightRequestsDrained", "HTTPServerStoppedListening"],
    False: ["NotAcceptingNewRequest", "HTTPServerStoppedListening", "InFlightRequestsDrained"],
}


class StoryDoor(Door):
    """Writes down what it was told."""

    def __init__(self, story: Story, name: str = "door", *, fails: str = "", hangs: str = "") -> None:
        self._story = story
        self._name = name
        self._fails = fails
        self._hangs = hangs

    @property
    def name(self) -> str:
        return self._name

    async def start(self) -> None:
        await self._step("start")

    async def tell_ready(self, *, ready: bool) -> None:
        await self._step("ready" if ready else "not ready")

    async def refuse(self) -> None:
        await self._step("refuse")

    async def stop_listening(self) -> None:
        await self._step("stop listening")

    async def drain(self, grace: timedelta) -> None:
        del grace
        await self._step("drain")

    async def close(self, grace: timedelta) -> None:
        await self._step("close" if grace > timedelta(seconds=1) else "close at once")

    async def _step(self, step: str) -> None:
        self._story.append(f"{self._name} {step}")
        if step == self._fails:
            raise StartError(f"{self._name} cannot {step}")
        if step == self._hangs:
            await asyncio.Event().wait()


async def at_once() -> None:
    """A stop that is requested by the time of the start."""


def server(*doors: Door, **times: timedelta | bool) -> Server:
    made = Server(SystemClock(), StopTimes(**{"hooks": timedelta(seconds=5), **times}))  # type: ignore[arg-type]
    for door in doors:
        made.add_door(door)
    return made


async def stopped_when_ready(subject: Server) -> None:
    """Runs it until it is ready, and stops it then."""

    async def stop() -> None:
        await subject.signals.has_been_ready.wait()

    await subject.prepare().run(stop)


def noting(story: Story, word: str) -> Callable[[], Awaitable[None]]:
    async def hook() -> None:
        story.append(word)

    return hook


async def hanging() -> None:
    await asyncio.Event().wait()


async def failing() -> None:
    raise RuntimeError("no lease")


@pytest.mark.parametrize("slower", ["delay", "hook"])
@pytest.mark.parametrize("retry_after", [True, False])
async def test_every_signal_happens_once_in_the_proven_order(slower: str, retry_after: bool) -> None:  # noqa: FBT001 - a case
    subject = server(StoryDoor([]), delay=timedelta(milliseconds=5 if slower == "hook" else 30), send_retry_after=retry_after)

    async def hook() -> None:
        await asyncio.sleep(0.03 if slower == "hook" else 0.005)

    subject.pre_shutdown.add("hook", hook)
    with structlog.testing.capture_logs() as logs:
        await stopped_when_ready(subject)
    signals = [line for line in logs if line["event"] == "lifecycle signal"]
    beside = ["AfterShutdownDelayDuration", "PreShutdownHooksStopped"]
    expected = beside if slower == "hook" else beside[::-1]
    assert [line["signal"] for line in signals] == [*BEFORE, *expected, *AFTER[retry_after]]
    moments = [line["monotonic"] for line in signals]
    assert moments == sorted(moments)


async def test_stop_takes_its_steps_in_the_proven_order() -> None:
    story: Story = []
    subject = server(StoryDoor(story))
    seen: dict[Endpoint, dict[str, str]] = {}

    async def controllers() -> None:
        story.append("pre-shutdown")
        seen.update({endpoint: dict(await subject.health.failing(endpoint)) for endpoint in Endpoint})

    subject.post_start.add("started", noting(story, "post-start"))
    subject.pre_shutdown.add("controllers", controllers)
    subject.flush.add("audit", noting(story, "flush"))
    await stopped_when_ready(subject)
    start = ["door start", "post-start", "door ready", "door not ready", "pre-shutdown"]
    assert story == [*start, "door refuse", "door drain", "flush", "door stop listening", "door close"]
    down = {"shutdown": "process is shutting down"}
    assert seen == {Endpoint.HEALTHZ: {}, Endpoint.LIVEZ: {}, Endpoint.READYZ: down}, "liveness stays"

    story.clear()
    subject = server(StoryDoor(story), send_retry_after=False)
    subject.flush.add("audit", noting(story, "flush"))
    await stopped_when_ready(subject)
    assert story[-5:] == ["door not ready", "door stop listening", "door drain", "flush", "door close"]

    story.clear()
    subject = server(StoryDoor(story), delay=timedelta(milliseconds=5))

    async def hook() -> None:
        await subject.signals.after_shutdown_delay.wait()
        await asyncio.sleep(0.02)
        story.append("hook done")

    subject.pre_shutdown.add("hook", hook)
    await stopped_when_ready(subject)
    assert story.index("hook done") < story.index("door refuse")


async def test_server_has_been_ready_once_its_hooks_are_done_and_its_checks_pass() -> None:
    story: Story = []
    subject = server(StoryDoor(story))
    well = asyncio.Event()

    async def check() -> None:
        if not well.is_set():
            raise RuntimeError("not yet")

    async def hook() -> None:
        assert not subject.signals.has_been_ready.signaled

    async def stop() -> None:
        await asyncio.sleep(10)
        assert not subject.signals.has_been_ready.signaled
        for now_well in (True, False, True):
            well.set() if now_well else well.clear()
            await asyncio.sleep(10)

    subject.health.add("last", check, endpoints=frozenset({Endpoint.READYZ}))
    subject.post_start.add("hook", hook)
    await subject.prepare().run(stop)
    expected = ["door start", "door ready", "door not ready", "door ready", "door not ready"]
    assert story[:5] == expected, "doors are notified of each change while it serves, and at the stop"


async def test_start_that_fails_closes_what_was_opened_at_once() -> None:
    story: Story = []
    subject = server(StoryDoor(story, "first"), StoryDoor(story, "second", fails="start"))
    with pytest.raises(StartError, match="second cannot start"):
        await subject.prepare().run(hanging)
    assert story == ["first start", "second start", "second close at once", "first close at once"]
    story.clear()
    subject = server(StoryDoor(story), delay=timedelta(hours=1))
    subject.post_start.add("caches", failing)
    subject.flush.add("audit", noting(story, "flush"))
    before = asyncio.get_running_loop().time()
    with structlog.testing.capture_logs() as logs, pytest.raises(HookError, match='hook "caches" failed: no lease'):
        await subject.prepare().run(hanging)
    assert asyncio.get_running_loop().time() - before < 1, "whatever the delay of a stop is"
    assert story == ["door start", "flush", "door close at once"]
    assert ("critical", "caches") in [(line["log_level"], line.get("hook")) for line in logs]


async def test_errors_and_hanging_steps_do_not_cut_the_stop_short_and_are_raised_at_its_end() -> None:
    async def in_trouble() -> BaseException:
        return RuntimeError("task hub/flush ended")

    story: Story = []
    with pytest.raises(RuntimeError, match="hub/flush"):
        await server(StoryDoor(story)).prepare().run(in_trouble)
    assert story[-1] == "door close"
    subject = server(StoryDoor(story), hooks=timedelta(milliseconds=20))
    subject.pre_shutdown.add("broken", failing)
    subject.pre_shutdown.add("hanging", hanging)
    subject.flush.add("audit", noting(story, "flush"))
    with pytest.raises(HookError, match=r'"hanging" did not finish .*"broken" failed: no lease'):
        await subject.prepare().run(at_once)
    assert story[-5:] == ["door refuse", "door drain", "flush", "door stop listening", "door close"]
    brief = {"requests": timedelta(milliseconds=20), "streams": timedelta(), "close": timedelta(seconds=1, microseconds=1)}
    await server(StoryDoor(story, hangs="drain"), **brief).prepare().run(at_once)
    assert story[-3:] == ["door drain", "door stop listening", "door close"]


async def test_only_a_prepared_server_runs_and_it_takes_nothing_more() -> None:
    subject = server()
    assert not hasattr(subject, "run")
    assert isinstance(subject.prepare(), PreparedServer)
    late: list[Callable[[], object]] = [partial(add, "two", hanging) for add in (subject.post_start.add, subject.health.add)]
    late += [partial(subject.add_door, StoryDoor([])), partial(subject.paths.expect, "two")]
    check_refusals(RuntimeError, lambda call: call(), [*((call, "too late") for call in late), (subject.prepare, "once")])
