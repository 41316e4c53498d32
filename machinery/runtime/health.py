"""Registry of named health checks for /livez, /readyz and /healthz. Each door formats the results itself."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

import structlog

from machinery.runtime.clock import Clock

log = structlog.get_logger(__name__)

Check = Callable[[], Awaitable[None]]


class Endpoint(StrEnum):
    HEALTHZ = "healthz"
    LIVEZ = "livez"
    READYZ = "readyz"


ALL = frozenset(Endpoint)
ANSWERS_WITHIN, SHARED_ANSWERS_WITHIN = timedelta(seconds=2), timedelta(seconds=1.5)
"""Time limit of a check, and time limit of a probe that waits for a shared check."""
READINESS = frozenset({Endpoint.READYZ})
LIVENESS = frozenset({Endpoint.HEALTHZ, Endpoint.LIVEZ})


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """A named check. `probe` raises if the check fails. A name may occur twice with different endpoints."""

    name: str
    probe: Check
    endpoints: frozenset[Endpoint] = ALL


async def _ping() -> None:
    """A check that always passes, because the process answers."""


PING = HealthCheck("ping", _ping)


class HealthChecks:
    """The registry of checks. `ping` is always registered and always passes.

    `livez_grace`: for this time after its registration, a check of the boot sequence passes on livez (not on other endpoints).
    """

    def __init__(self, clock: Clock, *, livez_grace: timedelta = timedelta()) -> None:
        self._clock = clock
        self._grace = livez_grace
        self._checks: list[HealthCheck] = []
        self._found: dict[Endpoint, dict[str, str]] = {}
        self._checks.append(PING)

    def add(self, name: str, check: Check, *, endpoints: frozenset[Endpoint] = ALL, boots: bool = False) -> None:
        """Register a check. `boots`: it is part of the boot sequence. Raises ValueError for a duplicate name."""
        if any(each.name == name for each in self._checks):
            raise ValueError(f'a health check named "{name}" is registered already')
        limit, lenient_until = ANSWERS_WITHIN.total_seconds(), self._clock.monotonic() + self._grace.total_seconds()

        async def bounded() -> None:
            try:
                async with asyncio.timeout(limit):
                    await check()
            except TimeoutError:
                raise RuntimeError(f"no answer within {limit:g} s") from None

        async def lenient_check() -> None:
            try:
                await bounded()
            except Exception:
                if self._clock.monotonic() > lenient_until:
                    raise

        lenient = endpoints & {Endpoint.LIVEZ} if boots and self._grace else frozenset[Endpoint]()
        self._checks.append(HealthCheck(name, bounded, endpoints - lenient))
        if lenient:
            self._checks.append(HealthCheck(name, lenient_check, lenient))

    def checks(self) -> tuple[HealthCheck, ...]:
        """Return all checks in order. With `livez_grace`, one with `boots` occurs twice: for livez, and for other endpoints."""
        return tuple(self._checks)

    def known(self, endpoint: Endpoint) -> dict[str, bool]:
        """Return, by name, whether each check of the endpoint passed at the last `failing`; {} before the first call."""
        found = self._found.get(endpoint)
        names = {check.name for check in self._checks if endpoint in check.endpoints}
        return {} if found is None else {name: name not in found for name in sorted(names)}

    async def failing(self, endpoint: Endpoint) -> dict[str, str]:
        """Run the endpoint's checks. Return the reason of each failing check by name. Log a warning if the result changes."""
        failing: dict[str, str] = {}
        for check in self._checks:
            if endpoint in check.endpoints:
                try:
                    await check.probe()
                except Exception as error:  # noqa: BLE001 - every exception means that the check fails
                    failing[check.name] = str(error) or type(error).__name__
        if failing != self._found.get(endpoint, {}):
            log.warning("health has changed", endpoint=endpoint.value, failing=failing)
        self._found[endpoint] = failing
        return failing


class SharedCheck:
    """An expensive check that runs at most once per `every`. Concurrent probes share its result.

    A probe waits up to SHARED_ANSWERS_WITHIN for a running check and never starts a second one. So probes do not add load to a
    dependency that hangs.
    """

    def __init__(self, check: Check, clock: Clock, *, every: timedelta = timedelta(seconds=1)) -> None:
        self._check = check
        self._clock = clock
        self._every = every.total_seconds()
        self._running: asyncio.Future[None] | None = None
        self._started_at = 0.0

    async def __call__(self) -> None:
        now = self._clock.monotonic()
        if self._running is None or (self._running.done() and now - self._started_at >= self._every):
            self._running, self._started_at = asyncio.ensure_future(self._check()), now
            self._running.add_done_callback(_retrieve_exception)
        await asyncio.wait({self._running}, timeout=max(self._started_at + SHARED_ANSWERS_WITHIN.total_seconds() - now, 0))
        if not self._running.done():
            raise RuntimeError(f"no answer for {self._clock.monotonic() - self._started_at:.1f} s")
        self._running.result()


def _retrieve_exception(check: asyncio.Future[None]) -> None:
    """Retrieve the exception of a check that no probe waited for, so that asyncio does not log it."""
    if not check.cancelled():
        check.exception()


class LoopProgress:
    """A check of the event loop's progress. It fails if `beat` was not called for `within`."""

    def __init__(self, clock: Clock, within: timedelta) -> None:
        self._clock = clock
        self._within = within
        self._last_beat = clock.monotonic()

    def beat(self) -> None:
        self._last_beat = self._clock.monotonic()

    async def __call__(self) -> None:
        silent = self._clock.monotonic() - self._last_beat
        if silent > self._within.total_seconds():
            raise RuntimeError(f"no progress for {silent:.0f} s")
