"""The tracer that sends spans to a collector by OTLP: the one place that knows OpenTelemetry, which is an extra.

Spans wait in a bounded queue for a thread of OpenTelemetry's own; a collector that is away costs spans and nothing else. What
OpenTelemetry reads from its own environment counts too: headers, certificates and attributes of the resource (`OTEL_*`).
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from machinery import product
from machinery.errors import InvalidError
from machinery.observability import tracing
from machinery.observability.tracing import Beginning, Span, SpanKind, TraceContext, Tracer, Value

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.sdk.trace.export import SpanExporter

EXTRA = "tracing"
QUEUED, TOGETHER = 2_048, 512
EVERY_MS = 5_000
ANSWERED_WITHIN = 5
"""Seconds that a collector has for one batch."""
ENDED_WITHIN_MS = 2_000
"""Of the last batch: how long the end of a process waits for a collector."""
SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class TraceExporter:
    """Who sends, and where to."""

    service: str
    endpoint: str
    """`http://HOST:PORT` or `https://HOST:PORT` of a collector that takes OTLP over gRPC."""
    share: float = 1.0
    """Of the traces: which ones follows from their ids, so that hub and agents choose the same."""
    instance: str = ""


_Processing = Callable[["SpanExporter"], "SpanProcessor"]


def endpoint(text: str) -> str:
    """`text`, if it can be one. Raises ValueError."""
    split = urlsplit(text)
    if split.scheme not in SCHEMES or not split.hostname or split.username or split.path not in ("", "/") or split.query:
        raise ValueError(f'"{_without_login(text)}" is no collector: write http://HOST:4317 or https://HOST:4317')
    return text


def _without_login(text: str) -> str:
    return text.rpartition("@")[2]


@contextmanager
def sending(told: TraceExporter | None) -> Iterator[None]:
    """A block in which the spans of this process go to a collector; None: there are no spans, and nothing is imported.

    Raises InvalidError when the extra is not installed.
    """
    if told is None:
        yield
        return
    tracer, close = tracer_of(told, _otlp_exporter(told), _batched)
    tracing.use(tracer)
    try:
        yield
    finally:
        tracing.use(None)
        close()


def tracer_of(told: TraceExporter, exporter: "SpanExporter", processing: _Processing) -> tuple[Tracer, Callable[[], None]]:
    """A tracer whose spans reach `exporter`, and what ends it."""
    sdk = _sdk()
    keep = sdk.sampling.TraceIdRatioBased(told.share)
    provider = sdk.trace.TracerProvider(
        # Whoever asks may say that a trace is not to be recorded, but not that it is: what that costs is ours to say.
        sampler=sdk.sampling.ParentBased(root=keep, remote_parent_sampled=keep),
        resource=sdk.Resource.create(
            {
                "service.name": told.service,
                "service.version": product.version(),
                "service.instance.id": told.instance or socket.gethostname(),
            }
        ),
        shutdown_on_exit=False,
        span_limits=sdk.trace.SpanLimits(max_span_attributes=32, max_attribute_length=256),
    )
    provider.add_span_processor(processing(exporter))
    return _OtelTracer(provider.get_tracer(product.NAME, product.version())), provider.shutdown


def _otlp_exporter(told: TraceExporter) -> "SpanExporter":
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise _not_installed() from error
    exporter: SpanExporter = OTLPSpanExporter(endpoint=told.endpoint, timeout=ANSWERED_WITHIN)
    return exporter


def _batched(exporter: "SpanExporter") -> "SpanProcessor":
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - an extra

    class Bounded(BatchSpanProcessor):
        """Ends a process soon, though its collector is away: OpenTelemetry's own patience is 30 seconds."""

        def shutdown(self) -> None:
            self._batch_processor.shutdown(timeout_millis=ENDED_WITHIN_MS)

    return Bounded(exporter, max_queue_size=QUEUED, schedule_delay_millis=EVERY_MS, max_export_batch_size=TOGETHER)


def _not_installed() -> InvalidError:
    return InvalidError(f"traces need what is not installed: pip install '{product.DISTRIBUTION}[{EXTRA}]'")


@dataclass(frozen=True, slots=True)
class _Sdk:
    api: Any
    trace: Any
    sampling: Any
    Resource: Any


def _sdk() -> _Sdk:
    try:
        from opentelemetry import trace as api  # noqa: PLC0415 - an extra
        from opentelemetry.sdk import trace  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace import sampling  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise _not_installed() from error
    return _Sdk(api, trace, sampling, Resource)


class _OtelTracer(Tracer):
    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer
        self._api = _sdk().api
        kinds = self._api.SpanKind
        self._kinds = {SpanKind.SERVER: kinds.SERVER, SpanKind.CLIENT: kinds.CLIENT, SpanKind.INTERNAL: kinds.INTERNAL}

    def begin(self, beginning: Beginning) -> Span:
        begun = self._tracer.start_span(
            beginning.name,
            context=self._within(beginning.parent, remote=beginning.remote),
            kind=self._kinds[beginning.kind],
            attributes=beginning.attributes,
        )
        return _OtelSpan(begun, self._api)

    def _within(self, parent: TraceContext | None, *, remote: bool) -> Any:
        """OpenTelemetry's context: never its own current one, which nobody here sets."""
        from opentelemetry.context import Context  # noqa: PLC0415 - an extra

        if parent is None:
            return Context()
        return self._api.set_span_in_context(self._api.NonRecordingSpan(self._foreign(parent, remote=remote)), Context())

    def _foreign(self, context: TraceContext, *, remote: bool) -> Any:
        return self._api.SpanContext(
            int(context.trace_id, 16),
            int(context.span_id, 16),
            is_remote=remote,
            trace_flags=self._api.TraceFlags(tracing.SAMPLED if context.sampled else 0),
            trace_state=self._api.TraceState.from_header([context.state] if context.state else []),
        )


class _OtelSpan(Span):
    __slots__ = ("_api", "_context", "_span")

    def __init__(self, span: Any, api: Any) -> None:
        self._span = span
        self._api = api
        context = span.get_span_context()
        self._context = TraceContext(
            f"{context.trace_id:032x}",
            f"{context.span_id:016x}",
            bool(context.trace_flags & tracing.SAMPLED),
            context.trace_state.to_header() if context.trace_state else "",
        )

    @property
    def context(self) -> TraceContext:
        return self._context

    def note(self, name: str, value: Value) -> None:
        self._span.set_attribute(name, value)

    def end(self, error: str = "") -> None:
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(self._api.StatusCode.ERROR)
        self._span.end()
