"""Named health checks behind /livez, /readyz and /healthz. How an answer looks is the door's business.

A check is an async callable without arguments that raises when it fails. Checks run in the order of their registration. An
endpoint is sealed when it is first served: a check that comes later would go unseen by who asked before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import partial

import structlog

from machinery.clock import Clock

log = structlog.get_logger(__name__)

Check = Callable[[], Awaitable[None]]


class Endpoint(StrEnum):
    HEALTHZ = "healthz"
    LIVEZ = "livez"
    READYZ = "readyz"


ALL = frozenset(Endpoint)
READINESS = frozenset({Endpoint.READYZ})


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one check. `reason` is for logs and for the check's own path; root answers withhold it."""

    name: str
    reason: str | None = None
    excluded: bool = False

    @property
    def passed(self) -> bool:
        return self.reason is None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of an endpoint's checks; `unknown_exclusions` named no check and do not fail it."""

    endpoint: Endpoint
    outcomes: tuple[Outcome, ...]
    unknown_exclusions: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return all(outcome.passed for outcome in self.outcomes)


@dataclass(frozen=True, slots=True)
class _Registered:
    name: str
    check: Check
    endpoints: frozenset[Endpoint]
    timeout: timedelta


class HealthChecks:
    """The registry. `ping` is always there and always passes."""

    def __init__(self, *, first_ready: Callable[[], None] = lambda: None) -> None:
        self._checks: dict[str, _Registered] = {}
        self._sealed: set[Endpoint] = set()
        self._first_ready = first_ready
        self.add("ping", _ping)

    def add(
        self,
        name: str,
        check: Check,
        *,
        endpoints: frozenset[Endpoint] = ALL,
        timeout: timedelta = timedelta(seconds=2),
    ) -> None:
        """Raises ValueError when the name is taken, RuntimeError when one of the endpoints is sealed."""
        if name in self._checks:
            raise ValueError(f'a health check named "{name}" is registered already')
        if late := self._sealed & endpoints:
            raise RuntimeError(f'health check "{name}" comes too late for {", ".join(sorted(late))}')
        self._checks[name] = _Registered(name, check, endpoints, timeout)

    def seal(self) -> None:
        """No check may be added from now on."""
        self._sealed.update(Endpoint)

    def probes(self) -> tuple[tuple[str, Check, frozenset[Endpoint]], ...]:
        """Every check with its name and endpoints, bounded in time: for a door that answers in its own way."""
        return tuple((entry.name, partial(self._probe, entry), entry.endpoints) for entry in self._checks.values())

    def names(self, endpoint: Endpoint) -> tuple[str, ...]:
        return tuple(entry.name for entry in self._checks.values() if endpoint in entry.endpoints)

    async def verdict(self, endpoint: Endpoint, *, excluded: Collection[str] = ()) -> Verdict:
        """Runs the endpoint's checks in order; a check's reason goes to the log here."""
        entries = [entry for entry in self._checks.values() if endpoint in entry.endpoints]
        outcomes = tuple([await self._outcome(entry, excluded=entry.name in excluded) for entry in entries])
        unknown = tuple(name for name in excluded if name not in {entry.name for entry in entries})
        verdict = Verdict(endpoint, outcomes, unknown)
        if failed := {outcome.name: outcome.reason for outcome in outcomes if not outcome.passed}:
            log.warning("health check failed", endpoint=endpoint.value, failed=failed)
        elif endpoint is Endpoint.READYZ:
            self._first_ready()
        return verdict

    async def single(self, endpoint: Endpoint, name: str) -> Outcome | None:
        """Runs one check alone; None: the endpoint has no such check."""
        entry = self._checks.get(name)
        return await self._outcome(entry) if entry and endpoint in entry.endpoints else None

    async def _outcome(self, entry: _Registered, *, excluded: bool = False) -> Outcome:
        if excluded:
            return Outcome(entry.name, excluded=True)
        try:
            await self._probe(entry)
        except Exception as error:  # noqa: BLE001 - whatever a check raises is its answer
            return Outcome(entry.name, str(error) or type(error).__name__)
        return Outcome(entry.name)

    async def _probe(self, entry: _Registered) -> None:
        limit = entry.timeout.total_seconds()
        try:
            async with asyncio.timeout(limit):
                await entry.check()
        except TimeoutError:
            raise RuntimeError(f"no answer within {limit:g} s") from None


async def _ping() -> None:
    return


class LoopProgress:
    """A check that says whether the event loop and what it runs have moved: `beat` is called by what must not stand still."""

    def __init__(self, clock: Clock, within: timedelta) -> None:
        self._clock = clock
        self._within = within
        self._last = clock.monotonic()

    def beat(self) -> None:
        self._last = self._clock.monotonic()

    async def __call__(self) -> None:
        silent = self._clock.monotonic() - self._last
        if silent > self._within.total_seconds():
            raise RuntimeError(f"no progress for {silent:.0f} s")
