"""Counters, durations and trace spans of store transactions, including the time in the queue."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from machinery.errors import UnavailableError
from machinery.observability import tracing
from machinery.observability.metrics import Distribution
from machinery.observability.tracing import Traced


@dataclass(slots=True)
class Work:
    """Counts the reading or the writing transactions since the start of the process. Updated on the event loop."""

    seconds: Distribution = field(default_factory=Distribution)
    failures: int = 0
    """Transactions that failed because of the database. Refusals by a use case do not count."""
    under_way: int = 0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Context manager that counts and times one transaction."""
        began = time.monotonic()
        self.under_way += 1
        try:
            yield
        except UnavailableError:
            self.failures += 1
            raise
        finally:
            self.under_way -= 1
            self.seconds.observe(time.monotonic() - began)


@dataclass(frozen=True, slots=True)
class StoreCounts:
    writing: Work = field(default_factory=Work)
    reading: Work = field(default_factory=Work)


T = TypeVar("T")
WAITED, RAN = "store.waited_ms", "store.ran_ms"
USE_CASE, ATTEMPTS = "store.use_case", "store.attempts"


def traced(name: str, use_case: Callable[..., Any], args: Sequence[Any]) -> Traced:
    """Return a trace span around a use case, which ends after the commit. The span is recorded if the caller is traced."""
    begun = tracing.within(name)
    if begun.is_recorded:
        begun.note(USE_CASE, _called(use_case, args))
    return begun


def _called(use_case: Callable[..., Any], args: Sequence[Any]) -> str:
    """The name of the use case inside partial applications and fencing wrappers."""
    while isinstance(use_case, partial):
        use_case = use_case.func
    inner = args[0] if args and callable(args[0]) else None
    if inner is not None and getattr(use_case, "__name__", "").startswith("_"):
        return _called(inner, args[1:])
    return f"{use_case.__module__.removeprefix('hub.registry.')}.{getattr(use_case, '__qualname__', type(use_case).__name__)}"


def timed(span: Traced, work: Callable[..., T]) -> Callable[..., T]:
    """Return `work` with a wrapper that notes its times on `span`; unchanged if the span is not recorded."""
    if not span.is_recorded:
        return work
    asked, attempts = perf_counter(), 0

    def run(tx: Any) -> T:
        nonlocal attempts
        begun, attempts = perf_counter(), attempts + 1
        try:
            return work(tx)
        finally:
            span.note(WAITED, round((begun - asked) * 1000, 3))
            span.note(RAN, round((perf_counter() - begun) * 1000, 3))
            span.note(ATTEMPTS, attempts)

    return run
