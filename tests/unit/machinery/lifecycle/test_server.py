"""The order of a start and of a stop."""

import asyncio
from datetime import timedelta

import pytest

from machinery.clock import ManualClock, SystemClock
from machinery.lifecycle.health import Endpoint
from machinery.lifecycle.hooks import HookError
from machinery.lifecycle.server import Door, Server, StartError, StopTimes
from machinery.lifecycle.signals import LifecycleSignal

Story = list[str]


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

    async def refuse(self) -> None:
        await self._step("refuse")

    async def drain(self) -> None:
        await self._step("drain")

    async def close(self) -> None:
        await self._step("close")

    async def _step(self, step: str) -> None:
        self._story.append(f"{self._name} {step}")
        if step == self._fails:
            raise StartError(f"{self._name} cannot {step}")
        if step == self._hangs:
            await asyncio.Event().wait()


class Stop:
    """The awaitable that a program's signals give."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._error: BaseException | None = None

    def request(self, error: BaseException | None = None) -> None:
        self._error = error
        self._event.set()

    async def wait(self) -> BaseException | None:
        await self._event.wait()
        return self._error


def server(**times: timedelta) -> Server:
    return Server(SystemClock(), StopTimes(**{"hooks": timedelta(seconds=5), **times}))


async def test_a_stop_takes_its_steps_in_the_proven_order() -> None:
    story: Story = []
    stop = Stop()
    subject = server()
    subject.add_door(StoryDoor(story))

    async def started() -> None:
        story.append("post-start")
        stop.request()

    async def controllers() -> None:
        verdict = await subject.health.verdict(Endpoint.READYZ)
        story.append(f"pre-shutdown, ready {verdict.passed}")

    subject.post_start.add("started", started)
    subject.pre_shutdown.add("controllers", controllers)
    await subject.prepare().run(stop.wait)
    assert story == ["door start", "post-start", "pre-shutdown, ready False", "door refuse", "door drain", "door close"]


async def test_every_signal_has_happened_in_the_end_and_in_its_order() -> None:
    stop = Stop()
    stop.request()
    subject = server(delay=timedelta(milliseconds=5))
    await subject.prepare().run(stop.wait)
    signals = subject.signals
    moments = [
        signals.mux_and_discovery_complete.signaled_at,
        signals.shutdown_initiated.signaled_at,
        signals.after_shutdown_delay.signaled_at,
        signals.not_accepting_new_request.signaled_at,
        signals.in_flight_requests_drained.signaled_at,
        signals.http_server_stopped_listening.signaled_at,
    ]
    known = [moment for moment in moments if moment is not None]
    assert len(known) == len(moments)
    assert known == sorted(known)


async def test_the_server_has_been_ready_once_its_hooks_are_done_and_its_checks_pass() -> None:
    stop = Stop()
    subject = server()

    async def check() -> None:
        stop.request()

    subject.health.add("last", check, endpoints=frozenset({Endpoint.READYZ}))
    await subject.prepare().run(stop.wait)
    assert subject.signals.has_been_ready.signaled


async def test_readiness_falls_while_liveness_stays() -> None:
    stop = Stop()
    subject = server()
    seen: dict[Endpoint, bool] = {}

    async def look() -> None:
        for endpoint in Endpoint:
            seen[endpoint] = (await subject.health.verdict(endpoint)).passed

    subject.pre_shutdown.add("look", look)
    stop.request()
    await subject.prepare().run(stop.wait)
    assert seen == {Endpoint.HEALTHZ: True, Endpoint.LIVEZ: True, Endpoint.READYZ: False}


async def test_a_door_that_cannot_open_ends_the_start_and_closes_what_was_opened() -> None:
    story: Story = []
    subject = server()
    subject.add_door(StoryDoor(story, "first"))
    subject.add_door(StoryDoor(story, "second", fails="start"))
    with pytest.raises(StartError, match="second cannot start"):
        await subject.prepare().run(Stop().wait)
    assert story == ["first start", "second start", "second close", "first close"]


async def test_a_failing_post_start_hook_stops_the_server_gracefully_and_is_told() -> None:
    story: Story = []
    subject = server()
    subject.add_door(StoryDoor(story))

    async def broken() -> None:
        raise RuntimeError("no cache")

    subject.post_start.add("caches", broken)
    with pytest.raises(HookError, match='post-start hook "caches" failed: no cache'):
        await subject.prepare().run(Stop().wait)
    assert story[-1] == "door close"


async def test_what_ended_the_server_is_raised_after_the_stop() -> None:
    story: Story = []
    stop = Stop()
    subject = server()
    subject.add_door(StoryDoor(story))
    stop.request(RuntimeError("task hub/flush ended"))
    with pytest.raises(RuntimeError, match="hub/flush"):
        await subject.prepare().run(stop.wait)
    assert story[-1] == "door close"


async def test_a_failing_or_hanging_pre_shutdown_hook_does_not_cut_the_drain_short() -> None:
    story: Story = []
    stop = Stop()
    subject = server(hooks=timedelta(milliseconds=20))
    subject.add_door(StoryDoor(story))

    async def hanging() -> None:
        await asyncio.Event().wait()

    subject.pre_shutdown.add("hanging", hanging)
    stop.request()
    with pytest.raises(TimeoutError):
        await subject.prepare().run(stop.wait)
    assert story == ["door start", "door refuse", "door drain", "door close"]


async def test_a_door_that_does_not_drain_is_closed_when_its_time_is_over() -> None:
    story: Story = []
    stop = Stop()
    subject = server(drain=timedelta(milliseconds=20))
    subject.add_door(StoryDoor(story, hangs="drain"))
    stop.request()
    await subject.prepare().run(stop.wait)
    assert story[-2:] == ["door drain", "door close"]


async def test_a_hook_name_is_unique_and_hooks_come_before_the_run() -> None:
    subject = server()

    async def hook() -> None:
        return

    subject.post_start.add("one", hook)
    subject.pre_shutdown.add("one", hook)
    with pytest.raises(ValueError, match="registered already"):
        subject.post_start.add("one", hook)
    with pytest.raises(ValueError, match="registered already"):
        subject.pre_shutdown.add("one", hook)
    subject.prepare()
    with pytest.raises(RuntimeError, match="too late"):
        subject.post_start.add("two", hook)


async def test_a_signal_happens_once() -> None:
    clock = ManualClock()
    signal = LifecycleSignal("ShutdownInitiated", clock)
    assert not signal.signaled
    signal.signal()
    first = signal.signaled_at
    clock.advance(timedelta(seconds=1))
    signal.signal()
    await signal.wait()
    assert (signal.signaled, signal.signaled_at) == (True, first)
