"""Spans of requests, and the W3C trace context that connects them across processes and with the log.

Tracing is off until a program's `__main__` calls `use` with a tracer, such as that of `machinery.observability.telemetry`.
Until then a span costs one variable access. Log lines contain the trace of a peer even if tracing is off. There are few span
names: the name of a cluster is an attribute. No attribute contains a secret, and heartbeats have no spans.
"""

import re
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from functools import wraps
from types import MappingProxyType, TracebackType
from typing import Any, ParamSpec, Protocol, Self, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
LONGEST_STATE = 512
"""Longest `tracestate`, in characters, that is passed on. W3C does not require more."""
SAMPLED = 0x01
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(r"[\x20-\x7e]*")

Value = str | int | float | bool
Call = Coroutine[Any, Any, T]
NOTHING_MORE: Mapping[str, Value] = MappingProxyType({})
Carried = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The ids of a trace and of a span in it, in lower-case hexadecimal as on the wire."""

    trace_id: str
    span_id: str
    sampled: bool
    state: str = ""
    """Data of other tracing systems, passed on unchanged."""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{SAMPLED if self.sampled else 0:02x}"


def parsed(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """Return the context that a peer sent; None if it is malformed. W3C requires that malformed contexts are ignored."""
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None or (match[1] == "00" and match[5]):
        return None
    kept = tracestate if len(tracestate) <= LONGEST_STATE and _STATE.fullmatch(tracestate) else ""
    return TraceContext(match[2], match[3], bool(int(match[4], 16) & SAMPLED), kept)


class SpanKind(StrEnum):
    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


_current: ContextVar[TraceContext | None] = ContextVar("trace", default=None)


class _Process:
    """The tracer of this process. It is global, like the logging configuration."""

    begin: "Begin | None" = None


def use(begin: "Begin | None") -> None:
    """From now on, begin all spans of this process with `begin`, which must not raise or block. None: no spans."""
    _Process.begin = begin


def current() -> TraceContext | None:
    """Return the current span, or the peer's span that caused the current work; None if there is none."""
    return _current.get()


def carried() -> Carried:
    """Return the headers, or gRPC metadata, with which a peer continues the current trace."""
    context = _current.get()
    if context is None:
        return ()
    return ((TRACEPARENT, context.traceparent), *(((TRACESTATE, context.state),) if context.state else ()))


class Traced:
    """Context manager that makes `context` the current span inside its block; None: changes nothing.

    This class records nothing: `context` may be a span of a peer. Subclasses record a span, and an error that leaves the block.
    """

    __slots__ = ("_before", "_context", "_open")

    def __init__(self, context: TraceContext | None) -> None:
        self._context = context
        self._before: TraceContext | None = None
        self._open = False

    def note(self, name: str, value: Value) -> None:
        """Set an attribute. It is ignored if no span is recorded, or the span has ended."""

    @property
    def is_recorded(self) -> bool:
        """Whether attributes are recorded; False after the end."""
        return False

    def finish(self, error: str) -> None:
        """End the recorded span; `end` calls this. `error`: kind of the error, from a bounded set; "": no error."""

    def end(self, error: str = "") -> None:
        """End the span, also before the end of the block. Then the previous span, if any, is current again. Idempotent."""
        if self._open:
            self._open = False
            _current.set(self._before)
        self.finish(error)

    def __enter__(self) -> Self:
        if self._context is not None:
            self._before = _current.get()
            self._open = True
            _current.set(self._context)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._context is not None:
            self.end("" if error is None or isinstance(error, GeneratorExit) else sort_of(error))


class Begin(Protocol):
    """Begins a span. `remote`: whether the parent is a span of a peer."""

    def __call__(
        self, name: str, kind: SpanKind, parent: TraceContext | None, attributes: Mapping[str, Value], *, remote: bool
    ) -> Traced: ...


NOTHING = Traced(None)


def sort_of(error: BaseException) -> str:
    """Return the kind of an error, from a bounded set: Kubernetes' reason, or the class name."""
    return str(getattr(error, "reason", "")) or type(error).__name__


def serving(name: str, sent: Callable[[str], str | None], attributes: Mapping[str, Value]) -> Traced:
    """Return a block around the handling of a request. `sent` returns a header, or gRPC metadata, of the request by name."""
    parent = parsed(sent(TRACEPARENT) or "", sent(TRACESTATE) or "")
    if _Process.begin is None:
        return NOTHING if parent is None else Traced(parent)
    return _Process.begin(name, SpanKind.SERVER, parent, attributes, remote=parent is not None)


def span(name: str, attributes: Mapping[str, Value] = NOTHING_MORE, *, kind: SpanKind = SpanKind.INTERNAL) -> Traced:
    """Return a block with its own span, which continues the current trace or begins a new one."""
    if _Process.begin is None:
        return NOTHING
    return _Process.begin(name, kind, _current.get(), attributes, remote=False)


def within(name: str) -> Traced:
    """Return a block that has a span only if the current trace is sampled. It never begins a trace."""
    parent = None if _Process.begin is None else _current.get()
    return span(name) if parent is not None and parent.sampled else NOTHING


def client_span(name: str) -> Callable[[Callable[P, Call[T]]], Callable[P, Call[T]]]:
    """Decorator for a function that calls a peer. Each call is a client span, which the peer continues."""

    def decorate(function: Callable[P, Call[T]]) -> Callable[P, Call[T]]:
        @wraps(function)
        async def traced_call(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name, kind=SpanKind.CLIENT):
                return await function(*args, **kwargs)

        return traced_call

    return decorate
