"""The tracer that exports spans to a collector by OTLP. Only this module uses OpenTelemetry, which is an optional extra.

Spans wait in a bounded queue, from which a thread of OpenTelemetry exports them. If the collector is unavailable, spans are
lost and nothing else happens. OpenTelemetry also reads its own environment variables (`OTEL_*`): headers, certificates,
resource attributes.
"""

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from machinery import product
from machinery.errors import InvalidError
from machinery.observability import tracing
from machinery.observability.tracing import Begin, SpanKind, TraceContext, Traced, Value

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

EXTRA = "tracing"
QUEUED, TOGETHER = 2_048, 512
EVERY_MS = 5_000
ANSWERED_WITHIN = 5
"""A collector must accept a batch within this many seconds."""
ENDED_WITHIN_MS = 2_000
"""The end of a process waits at most this many milliseconds for the export of the last batch."""
SCHEMES = ("http", "https")


@dataclass(frozen=True, slots=True)
class TraceExporter:
    """Service name and collector of the exported spans."""

    service: str
    endpoint: str
    """`http://HOST:PORT` or `https://HOST:PORT` of a collector for OTLP over gRPC."""
    share: float = 1.0
    """Share of traces that are sampled. The choice depends on the trace id: processes with equal shares choose equal traces."""
    instance: str = ""


def endpoint(text: str) -> str:
    """Return `text` if it is a valid URL of a collector. Raises ValueError otherwise."""
    split = urlsplit(text)
    if split.scheme not in SCHEMES or not split.hostname or split.username or split.path not in ("", "/") or split.query:
        without_login = text.rpartition("@")[2]
        raise ValueError(f'"{without_login}" is not a URL of a collector: write http://HOST:4317 or https://HOST:4317')
    return text


@contextmanager
def sending(exporter_config: TraceExporter | None) -> Iterator[None]:
    """A block that exports the spans of this process. `exporter_config` None: no spans, and OpenTelemetry is not imported.

    Raises InvalidError if the extra is not installed.
    """
    if exporter_config is None:
        yield
        return
    tracer, close = tracer_of(exporter_config, _batched(exporter_config))
    tracing.use(tracer)
    try:
        yield
    finally:
        tracing.use(None)
        close()


def tracer_of(exporter_config: TraceExporter, processor: "SpanProcessor") -> tuple[Begin, Callable[[], None]]:
    """Return the function that begins spans for `processor`, and the function that shuts `processor` down."""
    from opentelemetry import context, trace as api  # noqa: PLC0415 - an extra
    from opentelemetry.sdk import trace  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace import sampling  # noqa: PLC0415 - an extra

    keep = sampling.TraceIdRatioBased(exporter_config.share)
    provider = trace.TracerProvider(
        # A caller can disable the recording of its trace, but cannot enable it, because `share` limits the cost.
        sampler=sampling.ParentBased(root=keep, remote_parent_sampled=keep),
        resource=Resource.create(
            {
                "service.name": exporter_config.service,
                "service.version": product.version(),
                "service.instance.id": exporter_config.instance or socket.gethostname(),
            }
        ),
        shutdown_on_exit=False,
        span_limits=trace.SpanLimits(max_span_attributes=32, max_attribute_length=256),
    )
    provider.add_span_processor(processor)
    tracer = provider.get_tracer(product.NAME, product.version())
    nowhere = context.Context()  # OpenTelemetry's own current context is never used

    def begin(
        name: str, kind: SpanKind, parent: TraceContext | None, attributes: Mapping[str, Value], *, remote: bool
    ) -> Traced:
        within = nowhere
        if parent is not None:
            foreign = api.SpanContext(
                int(parent.trace_id, 16),
                int(parent.span_id, 16),
                is_remote=remote,
                trace_flags=api.TraceFlags(tracing.SAMPLED if parent.sampled else 0),
                trace_state=api.TraceState.from_header([parent.state] if parent.state else []),
            )
            within = api.set_span_in_context(api.NonRecordingSpan(foreign), within)
        return _Recorded(tracer.start_span(name, within, api.SpanKind[kind.name], attributes), api.StatusCode.ERROR)

    return begin, provider.shutdown


def _batched(exporter_config: TraceExporter) -> "SpanProcessor":
    """Return a processor that exports batches by OTLP. Raises InvalidError if the extra is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidError(f"traces need an extra: pip install '{product.DISTRIBUTION}[{EXTRA}]'") from error

    class Bounded(BatchSpanProcessor):
        """Limits the shutdown to ENDED_WITHIN_MS, because OpenTelemetry waits for 30 seconds by default."""

        def shutdown(self) -> None:
            self._batch_processor.shutdown(timeout_millis=ENDED_WITHIN_MS)

    exporter = OTLPSpanExporter(endpoint=exporter_config.endpoint, timeout=ANSWERED_WITHIN)
    return Bounded(exporter, max_queue_size=QUEUED, schedule_delay_millis=EVERY_MS, max_export_batch_size=TOGETHER)


class _Recorded(Traced):
    """A block with a span of OpenTelemetry."""

    __slots__ = ("_failed", "_span")

    def __init__(self, span: Any, failed: Any) -> None:
        context = span.get_span_context()
        state = context.trace_state.to_header() if context.trace_state else ""
        sampled = bool(context.trace_flags & tracing.SAMPLED)
        super().__init__(TraceContext(f"{context.trace_id:032x}", f"{context.span_id:016x}", sampled, state))
        self._span = span
        self._failed = failed

    @property
    def is_recorded(self) -> bool:
        return self._span is not None

    def note(self, name: str, value: Value) -> None:
        if self._span is not None:
            self._span.set_attribute(name, value)

    def finish(self, error: str) -> None:
        span, self._span = self._span, None
        if span is None:
            return
        if error:
            span.set_attribute("error.type", error)
            span.set_status(self._failed)
        span.end()
