"""Health checks, hooks, the order of a start and of a stop, stop signals and time limits."""

import asyncio
import errno
import gc
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
import structlog.testing

from machinery.errors import InvalidError, UnavailableError
from machinery.lifecycle.hooks import HookError, PostStartHooks
from machinery.lifecycle.process import LastResort, stop_signals
from machinery.lifecycle.server import Door, Server, StopTimes
from machinery.lifecycle.startup import StartError, StartupRetry, in_time, listening_failed
from machinery.runtime.clock import ManualClock, SystemClock
from machinery.runtime.health import LIVENESS, READINESS, Check, Endpoint, HealthChecks, LoopProgress, SharedCheck
from tests.checks import check_refusal, check_refusal_of


def registry(**options: timedelta) -> HealthChecks:
    return HealthChecks(ManualClock(), **options)


async def passing() -> None:
    return


async def failing() -> None:
    raise RuntimeError("the database is away")


async def hanging() -> None:
    await asyncio.Event().wait()


async def passes(check: Check) -> bool:
    try:
        await check()
    except RuntimeError:
        return False
    return True


async def test_livez_tolerates_boot_checks_until_the_grace_period_ends() -> None:
    for seconds, lenient in ((0, True), (30, True), (30.001, False)):
        clock = ManualClock()
        checks = HealthChecks(clock, livez_grace=timedelta(seconds=30))
        checks.add("hook", failing, boots=True)
        checks.add("database", failing, endpoints=READINESS)
        clock.advance(timedelta(seconds=seconds))
        assert (await checks.failing(Endpoint.LIVEZ) == {}) is lenient, (seconds, lenient)
        assert set(await checks.failing(Endpoint.HEALTHZ)) == {"hook"}, (seconds, lenient)
        assert set(await checks.failing(Endpoint.READYZ)) == {"hook", "database"}

    checks = registry()
    checks.add("hook", failing, boots=True)
    assert set(await checks.failing(Endpoint.LIVEZ)) == {"hook"}

    checks = registry(livez_grace=timedelta(seconds=30))
    checks.add("hook", failing, boots=True)
    checks.add("loopback", passing, endpoints=LIVENESS)
    served = [(endpoint, probe.name) for endpoint in Endpoint for probe in checks.checks() if endpoint in probe.endpoints]
    assert len(served) == len(set(served)) == 3 + 3 + 2


class Counted:
    """Something that is asked for its health."""

    def __init__(self) -> None:
        self.asked = 0
        self.well = True
        self.answers = asyncio.Event()
        self.answers.set()

    async def __call__(self) -> None:
        self.asked += 1
        await self.answers.wait()
        if not self.well:
            raise RuntimeError("away")


async def test_shared_check_asks_once_a_second_and_never_twice_at_a_time() -> None:
    clock, subject = ManualClock(), Counted()
    check = SharedCheck(subject, clock)
    await asyncio.gather(*(check() for _ in range(50)))
    subject.well = False
    clock.advance(timedelta(milliseconds=999))
    assert await passes(check), "the answer of less than a second ago"
    assert subject.asked == 1
    clock.advance(timedelta(milliseconds=1))
    assert (await passes(check), subject.asked) == (False, 2)

    clock, subject = ManualClock(), Counted()
    check = SharedCheck(subject, clock)
    subject.answers.clear()
    for _ in range(5):
        assert not await passes(check)
        clock.advance(timedelta(seconds=2))
    assert subject.asked == 1
    subject.answers.set()
    await asyncio.sleep(0)
    assert await passes(check)
    assert subject.asked == 2


async def test_an_answer_that_fails_when_nobody_waits_for_it_any_more_is_no_error_of_the_program() -> None:
    unseen: list[object] = []
    clock, subject = ManualClock(), Counted()
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unseen.append(context))
    check = SharedCheck(subject, clock)
    subject.answers.clear()
    subject.well = False
    assert not await passes(check)
    subject.answers.set()
    await asyncio.sleep(0)
    clock.advance(timedelta(seconds=2))
    subject.well = True
    assert await passes(check), "the next answer takes the place of the one that failed"
    gc.collect()
    assert unseen == []


async def test_check_names_are_unique_and_results_kept() -> None:
    checks = registry()
    assert [probe.name for probe in checks.checks()] == ["ping"]
    checks.add("database", failing, endpoints=READINESS)
    checks.add("other", passing, endpoints=READINESS)
    assert checks.known(Endpoint.READYZ) == {}, "nobody has asked yet"
    assert await checks.failing(Endpoint.READYZ) == {"database": "the database is away"}
    assert checks.known(Endpoint.READYZ) == {"database": False, "other": True, "ping": True}
    assert await checks.failing(Endpoint.LIVEZ) == {}
    checks.add("slow", hanging)
    assert await checks.failing(Endpoint.LIVEZ) == {"slow": "no answer within 2 s"}
    check_refusal(ValueError, checks.add, "slow", passing, match="registered already")

    clock = ManualClock()
    progress = LoopProgress(clock, timedelta(seconds=30))
    clock.advance(timedelta(seconds=31))
    await check_refusal_of(RuntimeError, progress(), match="no progress for 31 s")
    progress.beat()
    await progress()


async def test_post_start_hooks_have_health_checks_and_a_failure_ends_them_all() -> None:
    health, go = registry(), asyncio.Event()
    hooks = PostStartHooks(health)

    async def waits() -> None:
        await go.wait()

    hooks.add("caches", waits)
    running = asyncio.create_task(hooks.run())
    await asyncio.sleep(0)
    for endpoint in Endpoint:
        assert await health.failing(endpoint) == {"poststarthook/caches": "not finished"}
    go.set()
    await running
    assert await health.failing(Endpoint.READYZ) == {}

    health = registry()
    hooks, ended = PostStartHooks(health), asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    hooks.add("endless", endless)
    hooks.add("broken", failing)
    await check_refusal_of(HookError, hooks.run(), match='post-start hook "broken" failed')
    assert ended.is_set()
    assert "poststarthook/broken" in await health.failing(Endpoint.LIVEZ)


Story = list[str]
BEFORE = ["MuxAndDiscoveryComplete", "HasBeenReady", "ShutdownInitiated"]
AFTER = {
    True: ["NotAcceptingNewRequest", "InFlightRequestsDrained", "HTTPServerStoppedListening"],
    False: ["NotAcceptingNewRequest", "HTTPServerStoppedListening", "InFlightRequestsDrained"],
}


class StoryDoor(Door):
    """Records its calls."""

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

    async def set_ready(self, *, ready: bool) -> None:
        await self._step("ready" if ready else "not ready")

    async def refuse(self) -> None:
        await self._step("refuse")

    async def stop_listening(self) -> None:
        await self._step("stop listening")

    async def drain(self, _grace: timedelta) -> None:
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

    await subject.run(stop)


def noting(story: Story, word: str) -> Callable[[], Awaitable[None]]:
    async def hook() -> None:
        story.append(word)

    return hook


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
    background_task = ["AfterShutdownDelayDuration", "PreShutdownHooksStopped"]
    expected = background_task if slower == "hook" else background_task[::-1]
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
    subject, well = server(StoryDoor(story)), asyncio.Event()

    async def check() -> None:
        if not well.is_set():
            raise RuntimeError("not yet")

    async def hook() -> None:
        assert not subject.signals.has_been_ready.is_set()

    async def stop() -> None:
        await asyncio.sleep(10)
        assert not subject.signals.has_been_ready.is_set()
        for now_well in (True, False, True):
            well.set() if now_well else well.clear()
            await asyncio.sleep(10)

    subject.health.add("last", check, endpoints=frozenset({Endpoint.READYZ}))
    subject.post_start.add("hook", hook)
    await subject.run(stop)
    expected = ["door start", "door ready", "door not ready", "door ready", "door not ready"]
    assert story[:5] == expected, "doors are notified of each change while it serves, and at the stop"


async def test_start_that_fails_closes_what_was_opened_at_once() -> None:
    story: Story = []
    subject = server(StoryDoor(story, "first"), StoryDoor(story, "second", fails="start"))
    await check_refusal_of(StartError, subject.run(hanging), match="second cannot start")
    assert story == ["first start", "second start", "second close at once", "first close at once"]
    story.clear()
    subject = server(StoryDoor(story), delay=timedelta(hours=1))
    subject.post_start.add("caches", failing)
    subject.flush.add("audit", noting(story, "flush"))
    before = asyncio.get_running_loop().time()
    with structlog.testing.capture_logs() as logs, pytest.raises(HookError, match='hook "caches" failed: the database is away'):
        await subject.run(hanging)
    assert asyncio.get_running_loop().time() - before < 1, "whatever the delay of a stop is"
    assert story == ["door start", "flush", "door close at once"]
    assert ("critical", "caches") in [(line["log_level"], line.get("hook")) for line in logs]


async def test_errors_and_hanging_steps_do_not_cut_the_stop_short_and_are_raised_at_its_end() -> None:
    async def in_trouble() -> BaseException:
        return RuntimeError("task hub/flush ended")

    story: Story = []
    await check_refusal_of(RuntimeError, server(StoryDoor(story)).run(in_trouble), match="hub/flush")
    assert story[-1] == "door close"
    subject = server(StoryDoor(story), hooks=timedelta(milliseconds=20))
    subject.pre_shutdown.add("broken", failing)
    subject.pre_shutdown.add("hanging", hanging)
    subject.flush.add("audit", noting(story, "flush"))
    with pytest.raises(HookError, match=r'"hanging" did not finish .*"broken" failed: the database is away'):
        await subject.run(at_once)
    assert story[-5:] == ["door refuse", "door drain", "flush", "door stop listening", "door close"]
    short, close = timedelta(milliseconds=20), timedelta(seconds=1, microseconds=1)
    await server(StoryDoor(story, hangs="drain"), requests=short, streams=timedelta(), close=close).run(at_once)
    assert story[-3:] == ["door drain", "door stop listening", "door close"]


async def test_first_signal_requests_a_stop_and_the_second_ends_the_process() -> None:
    ended: list[str] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        ended.clear()
        before = signal.getsignal(number)
        with stop_signals(at_once=lambda: ended.append("at once")) as requested:
            os.kill(os.getpid(), number)
            await requested.wait()
            assert ended == [], number
            os.kill(os.getpid(), number)
            assert ended == ["at once"], number
        assert signal.getsignal(number) is before


def test_an_end_that_takes_too_long_is_made_and_one_in_time_is_left_alone() -> None:
    ended, disarmed = threading.Event(), threading.Event()
    late, prompt = LastResort(ended.set), LastResort(disarmed.set)
    prompt.arm(timedelta(minutes=1), "it hangs")
    waiting = prompt._timer
    prompt.disarm()
    assert waiting is not None
    waiting.join(10)
    assert (waiting.is_alive(), disarmed.is_set()) == (False, False), "nobody waits for its time any more"
    with structlog.testing.capture_logs() as logs:
        late.arm(timedelta(hours=1), "the start hangs")
        late.arm(timedelta(milliseconds=20), "the end hangs")
        assert ended.wait(5)
    assert [(line["log_level"], line["event"]) for line in logs] == [("critical", "the end hangs")]


def test_end_does_not_wait_for_a_log_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, read = threading.Event(), threading.Event()
    monkeypatch.setattr("machinery.lifecycle.process.LAST_LINE", timedelta(milliseconds=50))
    monkeypatch.setattr("machinery.lifecycle.process.log.critical", lambda *_line, **_fields: read.wait(60))
    LastResort(ended.set).arm(timedelta(milliseconds=20), "the end hangs")
    try:
        assert ended.wait(5)
    finally:
        read.set()


def test_listen_error_names_the_setting_and_the_reason() -> None:
    in_use, no_address = "is in use, perhaps by another hub", "is not an address of this machine"
    reasons = {errno.EADDRINUSE: in_use, errno.EADDRNOTAVAIL: no_address, errno.EACCES: "take a port above 1023"}
    for number, text in (reasons | {errno.ENETDOWN: "Network is down"}).items():
        error = str(listening_failed("grpc_listen", "10.0.0.7", 443, OSError(number, os.strerror(number))))
        named = (text, "10.0.0.7 port 443 (grpc_listen)", "--grpc-listen")
        assert [each for each in named if each not in error] == [], error
    assert "cannot be listened on: choose another" in str(listening_failed("grpc_listen", "h", 1, None))


class Away:
    """Something that answers at the attempt of that number."""

    def __init__(self, until: int) -> None:
        self.attempts = 0
        self._until = until

    async def __call__(self) -> str:
        self.attempts += 1
        if self.attempts < self._until:
            raise UnavailableError("the database does not answer")
        return "open"


def persevering(limit: float, stop: asyncio.Event | None = None) -> StartupRetry:
    return StartupRetry(timedelta(seconds=limit), then="is it there?", stop=stop or asyncio.Event())


async def test_start_is_retried_until_its_limit_and_a_step_that_hangs_is_named() -> None:
    with pytest.raises(StartError, match=r"the schema did not finish within 0\.01 s: is the database there\?"):
        await in_time("the schema", asyncio.Event().wait(), timedelta(milliseconds=10), then="is the database there?")

    async def own() -> None:
        raise TimeoutError("mine")

    await check_refusal_of(TimeoutError, in_time("the schema", own(), timedelta(seconds=5)), match="mine")

    away = Away(until=3)
    assert (await persevering(60)("opening it", away), away.attempts) == ("open", 3)

    starts: list[tuple[float, Any, str]] = [(0.2, Away(until=10_000), "the database does not answer: "), (0.05, hanging, "")]
    for limit, start, reason in starts:
        with pytest.raises(StartError, match=rf"^opening it did not finish within {limit} s: {reason}is it there\?$"):
            await persevering(limit)("opening it", start)

    async def wrong() -> None:
        raise InvalidError("the database has a newer schema")

    await check_refusal_of(InvalidError, persevering(60)("opening it", wrong))

    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, stop.set)
    with pytest.raises(StartError, match="stopped while it waited for opening it: the database does not answer"):
        await persevering(60, stop)("opening it", Away(until=10_000))
