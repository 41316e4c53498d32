"""What the store does for a request, in its trace: which use case, how long it waited for its turn, and how long it ran."""

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
    """A block around a use case, where its caller is part of a trace. The end is the commit's."""
    begun = tracing.within(name)
    if begun.is_recorded:
        begun.note(USE_CASE, _called(use_case, args))
    return begun


def _called(use_case: Callable[..., Any], args: Sequence[Any]) -> str:
    """The use case's name: of one that is wrapped (partly applied, or fenced by a term) that of what is in it."""
    while isinstance(use_case, partial):
        use_case = use_case.func
    inner = args[0] if args and callable(args[0]) else None
    if inner is not None and getattr(use_case, "__name__", "").startswith("_"):
        return _called(inner, args[1:])
    return f"{use_case.__module__.removeprefix('hub.registry.')}.{getattr(use_case, '__qualname__', type(use_case).__name__)}"


def timed(span: Traced, work: Callable[..., T]) -> Callable[..., T]:
    """`work`, which tells `span` on whatever thread it runs; as it is, where nobody will see that."""
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
