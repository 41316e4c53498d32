"""What a request causes, as spans, and the W3C trace context that ties them together across processes and into the log.

Off until a program's `__main__` calls `use` with a tracer; `machinery.observability.telemetry` makes one of OpenTelemetry's.
Until then a span costs one read of a variable. The log has the trace that a peer has begun either way. Names of spans are few
and bounded: a cluster's name is an attribute. No attribute holds a secret, and heartbeats have no spans.
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
"""Characters of a `tracestate` that are passed on: more need not be."""
SAMPLED = 0x01
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_STATE = re.compile(r"[\x20-\x7e]*")

Value = str | int | float | bool
Asked = Coroutine[Any, Any, T]
NOTHING_MORE: Mapping[str, Value] = MappingProxyType({})
Carried = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Which trace, and which span of it: lower-case hexadecimal, as on the wire."""

    trace_id: str
    span_id: str
    sampled: bool
    state: str = ""
    """Other tracing systems' own words, passed on as they came."""

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{SAMPLED if self.sampled else 0:02x}"


def parsed(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """The context that a peer sent; None for what is not one, which by W3C's rules is as if nothing had been sent."""
    match = _TRACEPARENT.fullmatch(traceparent.strip())
    if match is None or (match[1] == "00" and match[5]):
        return None
    kept = tracestate if len(tracestate) <= LONGEST_STATE and _STATE.fullmatch(tracestate) else ""
    return TraceContext(match[2], match[3], bool(int(match[4], 16) & SAMPLED), kept)


class SpanKind(StrEnum):
    SERVER = "server"
    CLIENT = "client"
    INTERNAL = "internal"


class Span(Protocol):
    """One piece of work, from `Tracer.begin` to `end`."""

    @property
    def context(self) -> TraceContext: ...

    def note(self, name: str, value: Value) -> None: ...

    def end(self, error: str = "") -> None:
        """`error`: of which sort, as a bounded word. Called once."""


@dataclass(frozen=True, slots=True)
class Beginning:
    """What is known of a span when it begins."""

    name: str
    kind: SpanKind
    parent: TraceContext | None
    remote: bool
    """Whether the parent is a peer's."""
    attributes: Mapping[str, Value]


class Tracer(Protocol):
    """Takes spans; never raises and never waits for anybody."""

    def begin(self, beginning: Beginning) -> Span: ...


_current: ContextVar[TraceContext | None] = ContextVar("trace", default=None)


class _Process:
    """The tracer of this process, as logging has one configuration per process."""

    tracer: Tracer | None = None


def use(tracer: Tracer | None) -> None:
    """Every span of this process goes to `tracer` from now on; None: there are none."""
    _Process.tracer = tracer


def current() -> TraceContext | None:
    """The span in which the caller works, or the peer's that caused the work."""
    return _current.get()


def carried() -> Carried:
    """Headers, or metadata, with which a peer goes on with this trace."""
    context = _current.get()
    if context is None:
        return ()
    return ((TRACEPARENT, context.traceparent), *(((TRACESTATE, context.state),) if context.state else ()))


class Traced:
    """A `with` block in which a span, if there is one, is the current one. An error that leaves it is the span's."""

    __slots__ = ("_before", "_context", "_open", "_span")

    def __init__(self, span: Span | None, context: TraceContext | None) -> None:
        self._span = span
        self._context = context
        self._before: TraceContext | None = None
        self._open = False

    def note(self, name: str, value: Value) -> None:
        """An attribute that is only known now. Nothing once it has ended."""
        if self._span is not None:
            self._span.note(name, value)

    @property
    def is_recorded(self) -> bool:
        """Whether anybody will see what is noted: False after the end too."""
        return self._span is not None

    def end(self, error: str = "") -> None:
        """Ends the span before the block does: what follows in the block belongs to no span. A second end is none."""
        if self._open:
            self._open = False
            _current.set(self._before)
        span, self._span = self._span, None
        if span is not None:
            span.end(error)

    def __enter__(self) -> Self:
        if self._context is not None:
            self._before = _current.get()
            self._open = True
            _current.set(self._context)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._context is not None:
            self.end("" if error is None or isinstance(error, GeneratorExit) else sort_of(error))


NOTHING = Traced(None, None)
"""The block where nobody traces: it does nothing, and so is one for all."""


def sort_of(error: BaseException) -> str:
    """A bounded word for an error: Kubernetes' reason where it has one, else the name of its class."""
    return str(getattr(error, "reason", "")) or type(error).__name__


def serving(name: str, sent: Callable[[str], str | None], attributes: Mapping[str, Value]) -> Traced:
    """A block around the answer to a request. `sent`: the request's header, or metadata, of a name."""
    parent = parsed(sent(TRACEPARENT) or "", sent(TRACESTATE) or "")
    if _Process.tracer is None:
        return NOTHING if parent is None else Traced(None, parent)
    return _begun(Beginning(name, SpanKind.SERVER, parent, parent is not None, attributes))


def span(name: str, attributes: Mapping[str, Value] = NOTHING_MORE, *, kind: SpanKind = SpanKind.INTERNAL) -> Traced:
    """A block of its own: part of the current trace, or the beginning of one."""
    if _Process.tracer is None:
        return NOTHING
    return _begun(Beginning(name, kind, _current.get(), remote=False, attributes=attributes))


def within(name: str) -> Traced:
    """A block that is only told as part of a trace that is recorded: what nobody asked for begins none."""
    if _Process.tracer is None:
        return NOTHING
    parent = _current.get()
    if parent is None or not parent.sampled:
        return NOTHING
    return _begun(Beginning(name, SpanKind.INTERNAL, parent, remote=False, attributes=NOTHING_MORE))


def asking(name: str) -> Callable[[Callable[P, Asked[T]]], Callable[P, Asked[T]]]:
    """For a function that asks a peer: each call is a span of that name, with which the peer goes on."""

    def told(function: Callable[P, Asked[T]]) -> Callable[P, Asked[T]]:
        @wraps(function)
        async def asked(*args: P.args, **kwargs: P.kwargs) -> T:
            with span(name, kind=SpanKind.CLIENT):
                return await function(*args, **kwargs)

        return asked

    return told


def _begun(beginning: Beginning) -> Traced:
    assert _Process.tracer is not None  # noqa: S101 - who calls has looked
    begun = _Process.tracer.begin(beginning)
    return Traced(begun, begun.context)
