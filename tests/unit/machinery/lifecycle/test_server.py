"""The order of a start and of a stop, in both modes."""

import asyncio
from datetime import timedelta

import pytest
import structlog.testing

from machinery.clock import ManualClock, SystemClock
from machinery.lifecycle.health import Endpoint
from machinery.lifecycle.hooks import HookError
from machinery.lifecycle.server import Door, PreparedServer, Server, StartError, StopTimes
from machinery.lifecycle.signals import LifecycleSignal
from tests.fakes.virtual_time import in_virtual_time
from tests.trials import repeated

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


def server(**times: timedelta | bool) -> Server:
    return Server(SystemClock(), StopTimes(**{"hooks": timedelta(seconds=5), **times}))  # type: ignore[arg-type]


async def ready(subject: Server) -> None:
    async with asyncio.timeout(5):
        await subject.signals.has_been_ready.wait()


async def stopped_when_ready(subject: Server) -> None:
    """Runs it until it is ready, and stops it then."""
    stop = Stop()

    async def ask() -> None:
        await ready(subject)
        stop.request()

    await asyncio.gather(subject.prepare().run(stop.wait), ask())


async def test_a_stop_takes_its_steps_in_the_proven_order() -> None:
    story: Story = []
    subject = server()
    subject.add_door(StoryDoor(story))

    async def started() -> None:
        story.append("post-start")

    async def controllers() -> None:
        story.append(f"pre-shutdown, {await subject.health.failing(Endpoint.READYZ)}")

    async def flush() -> None:
        story.append("flush")

    subject.post_start.add("started", started)
    subject.pre_shutdown.add("controllers", controllers)
    subject.flush.add("audit", flush)
    await stopped_when_ready(subject)
    assert story == [
        "door start",
        "post-start",
        "door ready",
        "door not ready",
        "pre-shutdown, {'shutdown': 'process is shutting down'}",
        "door refuse",
        "door drain",
        "flush",
        "door stop listening",
        "door close",
    ]


async def test_without_retry_after_the_listener_closes_before_the_drain_and_the_flush_comes_after_it() -> None:
    story: Story = []
    subject = server(send_retry_after=False)
    subject.add_door(StoryDoor(story))

    async def flush() -> None:
        story.append("flush")

    subject.flush.add("audit", flush)
    await stopped_when_ready(subject)
    assert story[-5:] == ["door not ready", "door stop listening", "door drain", "flush", "door close"]


@pytest.mark.parametrize("slower", ["delay", "hook"])
@pytest.mark.parametrize("retry_after", [True, False])
@repeated(test=3, soak=50)
def test_every_signal_happens_once_in_the_proven_order_whichever_is_slower(
    slower: str,
    retry_after: bool,  # noqa: FBT001 - a case
    trial: int,
) -> None:
    del trial
    in_virtual_time(_stopped_in_order(slower, retry_after=retry_after))


async def _stopped_in_order(slower: str, *, retry_after: bool) -> None:
    subject = server(delay=timedelta(milliseconds=5 if slower == "hook" else 30), send_retry_after=retry_after)
    subject.add_door(StoryDoor([]))

    async def hook() -> None:
        await asyncio.sleep(0.03 if slower == "hook" else 0.005)

    subject.pre_shutdown.add("hook", hook)
    with structlog.testing.capture_logs() as logs:
        await stopped_when_ready(subject)
    told = [line for line in logs if line["event"] == "lifecycle signal"]
    beside = ["AfterShutdownDelayDuration", "PreShutdownHooksStopped"]
    expected = beside if slower == "hook" else beside[::-1]
    assert [line["signal"] for line in told] == [*BEFORE, *expected, *AFTER[retry_after]]
    moments = [line["monotonic"] for line in told]
    assert moments == sorted(moments)


async def test_refusing_waits_for_the_hooks_also_after_the_delay() -> None:
    story: Story = []
    subject = server(delay=timedelta(milliseconds=5))
    subject.add_door(StoryDoor(story))

    async def hook() -> None:
        await subject.signals.after_shutdown_delay.wait()
        await asyncio.sleep(0.02)
        story.append("hook done")

    subject.pre_shutdown.add("hook", hook)
    await stopped_when_ready(subject)
    assert story.index("hook done") < story.index("door refuse")


async def test_the_server_has_been_ready_once_its_hooks_are_done_and_its_checks_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("machinery.lifecycle.server.LOOK_EVERY", timedelta(milliseconds=5))
    subject = server()
    well = asyncio.Event()

    async def check() -> None:
        if not well.is_set():
            raise RuntimeError("not yet")

    async def hook() -> None:
        assert not subject.signals.has_been_ready.signaled

    subject.health.add("last", check, endpoints=frozenset({Endpoint.READYZ}))
    subject.post_start.add("hook", hook)
    stop = Stop()

    async def ask() -> None:
        await asyncio.sleep(0.05)
        assert not subject.signals.has_been_ready.signaled
        well.set()
        await ready(subject)
        stop.request()

    await asyncio.gather(subject.prepare().run(stop.wait), ask())


async def test_doors_are_told_when_readiness_falls_and_rises_while_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("machinery.lifecycle.server.LOOK_EVERY", timedelta(milliseconds=5))
    story: Story = []
    subject = server()
    subject.add_door(StoryDoor(story))
    well = True

    async def check() -> None:
        if not well:
            raise RuntimeError("away")

    async def until(count: int) -> None:
        while len(story) < count:  # noqa: ASYNC110 - the subject tells nobody
            await asyncio.sleep(0.005)

    subject.health.add("database", check)
    stop = Stop()

    async def ask() -> None:
        nonlocal well
        await until(2)
        well = False
        await until(3)
        well = True
        await until(4)
        stop.request()

    async with asyncio.timeout(5):
        await asyncio.gather(subject.prepare().run(stop.wait), ask())
    assert story[:5] == ["door start", "door ready", "door not ready", "door ready", "door not ready"]


async def test_readiness_falls_while_liveness_stays() -> None:
    stop = Stop()
    subject = server()
    seen: dict[Endpoint, bool] = {}

    async def look() -> None:
        for endpoint in Endpoint:
            seen[endpoint] = not await subject.health.failing(endpoint)

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
    assert story == ["first start", "second start", "second close at once", "first close at once"]


async def test_a_failing_post_start_hook_ends_the_server_at_once_whatever_the_delay() -> None:
    story: Story = []
    subject = server(delay=timedelta(hours=1))
    subject.add_door(StoryDoor(story))

    async def broken() -> None:
        raise RuntimeError("no cache")

    async def flush() -> None:
        story.append("flush")

    subject.post_start.add("caches", broken)
    subject.flush.add("audit", flush)
    with structlog.testing.capture_logs() as logs, pytest.raises(HookError, match='post-start hook "caches" failed: no cache'):
        async with asyncio.timeout(1):
            await subject.prepare().run(Stop().wait)
    assert story == ["door start", "flush", "door close at once"]
    assert ("critical", "caches") in [(line["log_level"], line.get("hook")) for line in logs]


async def test_what_ended_the_server_is_raised_after_the_stop() -> None:
    story: Story = []
    stop = Stop()
    subject = server()
    subject.add_door(StoryDoor(story))
    stop.request(RuntimeError("task hub/flush ended"))
    with pytest.raises(RuntimeError, match="hub/flush"):
        await subject.prepare().run(stop.wait)
    assert story[-1] == "door close"


async def test_a_failing_or_hanging_pre_shutdown_hook_does_not_cut_the_drain_short_and_is_raised_at_the_end() -> None:
    story: Story = []
    stop = Stop()
    subject = server(hooks=timedelta(milliseconds=20))
    subject.add_door(StoryDoor(story))

    async def hanging() -> None:
        await asyncio.Event().wait()

    async def broken() -> None:
        raise RuntimeError("no lease")

    async def flush() -> None:
        story.append("flush")

    subject.pre_shutdown.add("broken", broken)
    subject.pre_shutdown.add("hanging", hanging)
    subject.flush.add("audit", flush)
    stop.request()
    with pytest.raises(HookError, match=r'"hanging" did not finish .*"broken" failed: no lease'):
        await subject.prepare().run(stop.wait)
    assert story[-5:] == ["door refuse", "door drain", "flush", "door stop listening", "door close"]


async def test_a_door_that_does_not_drain_is_closed_when_its_time_is_over() -> None:
    story: Story = []
    stop = Stop()
    brief = {"requests": timedelta(milliseconds=20), "streams": timedelta(), "close": timedelta(seconds=1, microseconds=1)}
    subject = server(**brief)
    subject.add_door(StoryDoor(story, hangs="drain"))
    stop.request()
    await subject.prepare().run(stop.wait)
    assert story[-3:] == ["door drain", "door stop listening", "door close"]


async def test_only_a_prepared_server_runs_and_it_takes_nothing_more() -> None:
    subject = server()

    async def hook() -> None:
        return

    assert not hasattr(subject, "run")
    prepared = subject.prepare()
    assert isinstance(prepared, PreparedServer)
    with pytest.raises(RuntimeError, match="too late"):
        subject.post_start.add("two", hook)
    with pytest.raises(RuntimeError, match="too late"):
        subject.health.add("two", hook)
    with pytest.raises(RuntimeError, match="too late"):
        subject.add_door(StoryDoor([]))
    with pytest.raises(RuntimeError, match="too late"):
        subject.paths.expect("two")
    with pytest.raises(RuntimeError, match="prepared once"):
        subject.prepare()


async def test_the_longest_stop_is_the_sum_of_its_steps() -> None:
    seconds = {"delay": 30, "hooks": 20, "requests": 60, "streams": 10, "flush": 10, "close": 2}
    assert StopTimes(**{name: timedelta(seconds=value) for name, value in seconds.items()}).longest == timedelta(seconds=106)  # type: ignore[arg-type]


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
