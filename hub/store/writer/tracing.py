"""Trace spans for store transactions: the use case, its waiting time and its run time."""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

from machinery.observability import tracing
from machinery.observability.tracing import Traced

T = TypeVar("T")
WAITED, RAN = "store.waited_ms", "store.ran_ms"
USE_CASE, ATTEMPTS = "store.use_case", "store.attempts"


def traced(name: str, use_case: Callable[..., Any], args: Sequence[Any]) -> Traced:
    """A span around a use case, if its caller is traced. It ends after the commit."""
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
    """`work`, with its times noted on `span` from the thread that runs it; unchanged if the span is not recorded."""
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
