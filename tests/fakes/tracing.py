"""Spans that a test looks at: OpenTelemetry's own, kept in memory, and what a collector was sent."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from grpc import aio
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from machinery.observability import telemetry, tracing


@dataclass
class Recorded:
    """The spans that have ended, in the order of their ends."""

    _exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        """The only span of this name. AssertionError when there is another number of them."""
        found = self.named(name)
        assert len(found) == 1, f"{len(found)} spans are named {name!r}: {[span.name for span in self.spans]}"
        return found[0]

    def children(self, parent: ReadableSpan) -> list[str]:
        return [span.name for span in self.spans if span.parent is not None and span.parent.span_id == ids(parent)[1]]

    def forget(self) -> None:
        self._exporter.clear()


def ids(span: ReadableSpan) -> tuple[int, int]:
    """Of its trace, and its own."""
    context = span.get_span_context()
    assert context is not None
    return context.trace_id, context.span_id


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


@contextmanager
def recorded(share: float = 1.0) -> Iterator[Recorded]:
    """A block whose spans are kept, by the sampler that programs have."""
    kept, trace_exporter = Recorded(), telemetry.TraceExporter("test", "http://nowhere", share)
    tracer, close = telemetry.tracer_of(trace_exporter, SimpleSpanProcessor(kept._exporter))
    tracing.use(tracer)
    try:
        yield kept
    finally:
        tracing.use(None)
        close()


@dataclass
class Collector(TraceServiceServicer):
    """What OTLP's collector was sent: name, service, trace and parent of each span, and the very bytes."""

    port: int = 0
    spans: list[Any] = field(default_factory=list)
    services: dict[str, str] = field(default_factory=dict)  # by span id in hexadecimal, who sent it
    raw: bytes = b""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def Export(  # noqa: N802 - the method's name
        self, request: ExportTraceServiceRequest, _context: Any
    ) -> ExportTraceServiceResponse:
        self.raw += request.SerializeToString()
        for each in request.resource_spans:
            service = next(one.value.string_value for one in each.resource.attributes if one.key == "service.name")
            for scope in each.scope_spans:
                self.spans += scope.spans
                self.services |= {span.span_id.hex(): service for span in scope.spans}
        return ExportTraceServiceResponse()

    def named(self, service: str, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name and self.services[span.span_id.hex()] == service]


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    server, collector = aio.server(), Collector()
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    collector.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield collector
    finally:
        await server.stop(None)
