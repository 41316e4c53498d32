"""Spans and the context that ties them together: what is told, what is not, and what it costs where nobody traces."""

import asyncio
import io
import json
import subprocess
import sys

import pytest
import structlog
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from machinery import logs, telemetry, tracing
from machinery.errors import ConflictError, InvalidError
from machinery.telemetry import Told
from machinery.tracing import NOTHING, TraceContext, parsed
from tests.fakes.tracing import attributes, ids, recorded

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-00"}


@pytest.mark.parametrize(
    ("text", "known"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", True),
        (f" 00-{TRACE}-{SPAN}-01 ", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
        (f"00-{TRACE}-{SPAN}-01-too-much", False),
        (f"ff-{TRACE}-{SPAN}-01", False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{SPAN}-01", False),
        (f"00-{TRACE[:-1]}-{SPAN}-01", False),
        (f"00-{TRACE}-{SPAN}", False),
        ("", False),
        ("\n\x00", False),
    ],
)
def test_a_traceparent_is_read_by_the_rules_of_w3c(text: str, *, known: bool) -> None:
    assert (parsed(text) is not None) is known


def test_a_context_is_written_as_it_was_read() -> None:
    context = parsed(SENT["traceparent"], SENT["tracestate"])
    assert context == TraceContext(TRACE, SPAN, sampled=True, state="vendor=1")
    assert context.traceparent == SENT["traceparent"]


@pytest.mark.parametrize("state", ["v=" + "x" * 600, "v=\r\nx: y", "v=ü"])
def test_a_tracestate_that_is_long_or_no_header_is_not_passed_on(state: str) -> None:
    context = parsed(SENT["traceparent"], state)
    assert context is not None
    assert context.state == ""


def test_where_nobody_traces_a_span_is_nothing_and_carries_nothing() -> None:
    with tracing.span("work", {"a": 1}) as span, tracing.within("more") as inner:
        span.note("late", 1)
        assert (span, inner, tracing.current(), tracing.carried()) == (NOTHING, NOTHING, None, ())


def test_where_nobody_traces_a_peers_trace_goes_on_to_whom_we_ask() -> None:
    with tracing.serving("get", SENT.get, {}):
        assert tracing.carried() == tuple(SENT.items())
    assert tracing.current() is None


def test_a_request_goes_on_with_its_peers_trace_and_what_it_causes_is_part_of_it() -> None:
    with recorded() as kept:
        with tracing.serving("get", SENT.get, {"a": "b"}), tracing.span("inside"), tracing.within("deeper"):
            pass
        outer, inside, deeper = kept.one("get"), kept.one("inside"), kept.one("deeper")
        assert {ids(span)[0] for span in kept.spans} == {int(TRACE, 16)}
        assert outer.parent is not None
        assert (outer.parent.span_id, outer.parent.is_remote) == (int(SPAN, 16), True)
        assert (kept.children(outer), kept.children(inside)) == (["inside"], ["deeper"])
        assert attributes(outer) == {"a": "b"}
        assert deeper.get_span_context() != inside.get_span_context()


def test_what_follows_the_early_end_of_a_span_belongs_to_no_trace() -> None:
    with recorded() as kept:
        with tracing.serving("watch", SENT.get, {}) as span:
            span.end()
            assert tracing.current() is None
            with tracing.within("read"):
                pass
            span.note("late", 1)
        assert [(span.name, attributes(span)) for span in kept.spans] == [("watch", {})]


def test_what_nobody_asked_for_begins_no_trace() -> None:
    with recorded() as kept:
        with tracing.within("flush"):
            pass
        with tracing.serving("get", UNSAMPLED.get, {}), tracing.within("read"):
            assert tracing.carried() != ()
        assert kept.spans == []


@pytest.mark.parametrize(
    ("error", "sort"),
    [
        (ConflictError("edge1 was changed"), "Conflict"),
        (KeyError("secret"), "KeyError"),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
def test_an_error_is_told_as_its_sort_and_never_in_its_words(error: BaseException, sort: str) -> None:
    with recorded() as kept:
        with pytest.raises(type(error)), tracing.span("work"):
            raise error
        (span,) = kept.spans
        assert span.status.status_code is StatusCode.ERROR
        assert (span.status.description, span.events, attributes(span)) == (None, (), {"error.type": sort})


def test_a_generator_that_is_left_is_no_error() -> None:
    with recorded() as kept:

        def lines() -> object:
            with tracing.span("lines"):
                yield 1

        generator = lines()
        next(generator)  # type: ignore[call-overload]
        generator.close()  # type: ignore[attr-defined]
        assert kept.one("lines").status.status_code is StatusCode.UNSET


@pytest.mark.parametrize(
    ("share", "sent", "told"), [(0.0, SENT, 0), (1.0, SENT, 1), (1.0, UNSAMPLED, 0), (0.0, {}, 0), (1.0, {}, 1)]
)
def test_a_peer_may_ask_for_less_than_our_share_of_traces_and_not_for_more(
    share: float, sent: dict[str, str], told: int
) -> None:
    with recorded(share) as kept:
        with tracing.serving("get", sent.get, {}):
            pass
        assert len(kept.spans) == told


async def test_what_asks_a_peer_is_a_span_that_the_peer_goes_on_with() -> None:
    @tracing.asking("ensure cluster")
    async def ask(name: str) -> tuple[str, str]:
        await asyncio.sleep(0)
        return name, dict(tracing.carried())["traceparent"]

    with recorded() as kept:
        name, carried = await ask("edge1")
        sent, span = parsed(carried), kept.one("ensure cluster")
        assert name == "edge1"
        assert sent is not None
        assert (int(sent.trace_id, 16), int(sent.span_id, 16)) == ids(span)
        assert span.kind.name == "CLIENT"


async def test_tasks_side_by_side_keep_their_traces_apart() -> None:
    async def work(name: str) -> None:
        with tracing.span(name):
            await asyncio.sleep(0)
            with tracing.within(f"{name} inside"):
                await asyncio.sleep(0)

    with recorded() as kept:
        async with asyncio.TaskGroup() as tasks:
            for name in ("a", "b"):
                tasks.create_task(work(name))
        assert [kept.children(kept.one(name)) for name in ("a", "b")] == [["a inside"], ["b inside"]]


def test_a_line_bears_the_trace_in_which_it_is_written() -> None:
    stream = io.StringIO()
    logs.configure("info", logs.LogFormat.JSON, stream)
    with tracing.serving("get", SENT.get, {}):
        structlog.get_logger("hub").info("in it")
    structlog.get_logger("hub").info("after it")
    inside, after = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (inside["trace_id"], inside["span_id"]) == (TRACE, SPAN)
    assert "trace_id" not in after


@pytest.mark.parametrize(
    "url", ["collector:4317", "ftp://collector", "http://", "http://a/v1/traces", "http://me:canary@host:4317"]
)
def test_what_is_no_collector_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(ValueError, match="write http://HOST:4317") as refused:
        telemetry.endpoint(url)
    assert "canary" not in str(refused.value)


def test_without_the_extra_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with (
        pytest.raises(InvalidError, match=r"pip install 'muster-hub\[tracing\]'"),
        telemetry.sending(Told("hub", "http://127.0.0.1:4317")),
    ):
        pass
    assert tracing.span("work") is NOTHING


def test_programs_that_do_not_trace_load_nothing_of_opentelemetry() -> None:
    script = "import sys, hub.app, spoke.app, spoke.__main__; print([name for name in sys.modules if 'opentelemetry' in name])"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_names_of_services_and_processes_stand_on_what_is_sent() -> None:
    exporter = InMemorySpanExporter()
    told = Told("muster-hub", "http://nowhere", instance="hub-0")
    tracer, close = telemetry.tracer_of(told, exporter, SimpleSpanProcessor)
    tracing.use(tracer)
    try:
        with tracing.span("work"):
            pass
    finally:
        tracing.use(None)
        close()
    resource = exporter.get_finished_spans()[0].resource.attributes
    assert (resource["service.name"], resource["service.instance.id"]) == ("muster-hub", "hub-0")
