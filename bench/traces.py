"""What traces cost where they are recorded, and where they are not: processor time of one block, without a network."""

import time
from collections.abc import Callable

import click
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from machinery.observability import telemetry, tracing

SENT = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
TOLD = {"http.request.method": "GET", "url.path": "/apis", "muster.request_id": "id"}


@click.command()
@click.option("--runs", default=20_000, show_default=True, type=click.IntRange(1000), help="Blocks per figure.")
def traces(runs: int) -> None:
    """Measure traces, block by block."""
    _figures("nobody traces", runs)
    for name, share in (("not recorded", 0.0), ("recorded", 1.0)):
        exporter = InMemorySpanExporter()
        tracer, close = telemetry.tracer_of(
            telemetry.TraceExporter("bench", "http://nowhere", share), exporter, SimpleSpanProcessor
        )
        tracing.use(tracer)
        _figures(name, runs)
        tracing.use(None)
        close()


def _figures(name: str, runs: int) -> None:
    _say(f"{name}: a request's block", runs, lambda: _block(tracing.serving("list managedclusters", SENT.get, TOLD)))
    with tracing.serving("list managedclusters", SENT.get, TOLD):
        _say(f"{name}: a use case's block", runs, lambda: _block(tracing.within("store read")))


def _block(block: tracing.Traced) -> None:
    with block:
        pass


def _say(what: str, runs: int, work: Callable[[], None]) -> None:
    begun = time.process_time_ns()
    for _ in range(runs):
        work()
    click.echo(f"{what:40} {(time.process_time_ns() - begun) / runs / 1000:7.2f} µs")
