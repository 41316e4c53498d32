"""Log lines and levels, spans and metrics."""

import asyncio
import base64
import io
import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
import structlog
from hypothesis import given, settings, strategies as st
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from prometheus_client.parser import text_string_to_metric_families

from machinery.errors import ConflictError, InvalidError
from machinery.lifecycle.process import Verbosity, verbosity_signal
from machinery.observability import logs, telemetry, tracing
from machinery.observability.logs import REDACTED, LogOnce, redacted
from machinery.observability.metrics import Distribution, Registry, Tally, counter, gauge, histogram
from machinery.observability.telemetry import TraceExporter
from machinery.observability.tracing import NOTHING, TraceContext, parsed
from tests.checks import check_refusal, present
from tests.fakes.tracing import attributes, recorded

PEM = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIBcanarycanarycanary\n-----END EC PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.fixture
def stream() -> io.StringIO:
    target = io.StringIO()
    logs.configure("info", logs.LogFormat.JSON, target)
    return target


def text_of(stream: io.StringIO) -> str:
    """What was written since the last call."""
    text = stream.getvalue()
    stream.seek(0)
    stream.truncate()
    return text


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in text_of(stream).splitlines()]


def test_event_is_one_json_line_in_one_stream_with_standard_logging(stream: io.StringIO) -> None:
    log = structlog.get_logger("hub")
    log.info("cluster accepted", cluster="c1")
    (line,) = lines(stream)
    assert (line["event"], line["cluster"], line["level"], line["logger"]) == ("cluster accepted", "c1", "info", "hub")
    log.debug("below the level")
    assert lines(stream) == []
    with structlog.contextvars.bound_contextvars(request="r1"):
        log.info("one")
    assert lines(stream)[0]["request"] == "r1"
    log.info("odd", where=Path("a"), many={1}, raw=b"\xff", none=None, deep={"at": date(2026, 1, 1)})
    (line,) = lines(stream)
    expected = {"where": "a", "many": [1], "raw": "\ufffd", "none": None, "deep": {"at": "2026-01-01"}}
    assert {name: line[name] for name in expected} == expected, "a value without a JSON form is logged as text"

    log.info("ours")
    logging.getLogger("some.library").warning("theirs %d", 1)
    log.info("ours again", certificate=CERTIFICATE)
    logged = lines(stream)
    assert [line["event"] for line in logged] == ["ours", "theirs 1", "ours again"]
    assert logged[-1]["certificate"] == CERTIFICATE, "what is no secret is not redacted"
    stream.close()
    log.info("nobody hears this")
    logs.flush()
    assert stream.closed
    logging.getLogger().handlers.clear()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_log_is_text_with_the_next_commands_on_a_terminal_and_json_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[io.StringIO, logs.LogFormat, bool]] = [
        (Terminal(), logs.LogFormat.AUTO, True),
        (io.StringIO(), logs.LogFormat.AUTO, False),
        (Terminal(), logs.LogFormat.JSON, False),
        (io.StringIO(), logs.LogFormat.CONSOLE, True),
    ]
    for target, form, is_text in rows:
        logs.configure("info", form, target)
        structlog.get_logger("hub").info("cluster accepted", cluster="c1")
        logs.show("It runs.", {"door": "x:1", "url": "postgres://a:canary@db"}, "type this")
        text = text_of(target)
        shown = ("\nIt runs.\n\n  door  x:1\n" in text, "\n    type this\n" in text, not text.startswith("{"))
        assert (shown, "canary" in text) == ((is_text,) * 3, False), form
        assert ("\x1b[" in text) is (is_text and target.isatty()), form
    monkeypatch.setenv("NO_COLOR", "1")
    logs.configure("info", logs.LogFormat.AUTO, target := Terminal())
    structlog.get_logger("hub").info("cluster accepted", cluster="c1")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d [\d:]{8}Z \[info +\] cluster accepted +\[hub\] cluster=c1\n", text_of(target))
    logging.getLogger().handlers.clear()


def test_repeated_failure_is_logged_once_until_its_text_changes_or_it_ends(stream: io.StringIO) -> None:
    once = LogOnce(structlog.get_logger("hub"))
    assert not once.reset()
    for error in (ConflictError("changed"), "changed", KeyError(), KeyError()):
        once.warning("not written", error, attempt=1)
    assert [(line["error"], line["attempt"]) for line in lines(stream)] == [("changed", 1), ("KeyError", 1)]
    assert once.text == "KeyError"
    assert once.reset()
    once.error("not written", KeyError())
    once.warning("not written", KeyError())
    logged = [(line["event"], line["level"], line["error"], line["logger"]) for line in lines(stream)]
    assert logged == [("not written", "error", "KeyError", "hub")]


class ExecuteBatchError(Exception):
    """As gRPC names what it raises for a peer that left."""


def test_grpc_noise_is_not_logged(stream: io.StringIO) -> None:
    logs.configure("debug", logs.LogFormat.JSON, stream)
    grpc = logging.getLogger("grpc._cython.cygrpc")
    assert not grpc.isEnabledFor(logging.DEBUG)
    assert structlog.get_logger("hub").isEnabledFor(logging.DEBUG)
    for raised in (ExecuteBatchError(), KeyError("of ours")):
        grpc.error(str(raised), exc_info=raised)
    grpc.warning("something else")
    assert [line["event"] for line in lines(stream)] == ["'of ours'", "something else"]


def test_secrets_are_redacted_in_every_form(stream: io.StringIO) -> None:
    for value in (
        PEM,
        PEM.encode(),
        base64.b64encode(PEM.encode()).decode(),
        {"tls": {"inner": [PEM]}},
        ValueError(f"cannot read {PEM}"),
        "postgresql://muster:canary@db/hub",
        "Authorization: Bearer canarycanarycanary",
        "eyJhbGciOiJSUzI1NiJ9.canarycanarycanary.canary",
        "the token 0123456789abcdef.canarycanarycanarycanarycanaryca is",
    ):
        structlog.get_logger("hub").info("event", field=value)
        text = text_of(stream)
        assert "canary" not in text.lower(), value
        assert base64.b64encode(PEM.encode()).decode()[60:90] not in text, value
        assert REDACTED in text, value
    try:
        raise ValueError(PEM)
    except ValueError:
        structlog.get_logger("hub").exception("failed")
    text = text_of(stream)
    assert "canary" not in text
    assert "ValueError" in text
    structlog.get_logger("hub").info("event", client_key_data="canary", nested={"password": "canary"})
    assert "canary" not in text_of(stream), "the name of a field counts too"


SHORT_PEM = "-----BEGIN PRIVATE KEY-----\nMHcCAQEEIBcanary\n-----END PRIVATE KEY-----"
SECRETS = (
    SHORT_PEM,
    base64.b64encode(SHORT_PEM.encode()).decode(),
    f"{'0a' * 8}.{'z9' * 16}",
    "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJjYW5hcnkifQ.c2lnbmF0dXJl",
    "postgresql://hub:canary@db/hub",
    "://u:p@",
    "Bearer canarycanary",
    "bEARER canary~canary",
)
PIECES = st.one_of(
    st.sampled_from((*SECRETS, ".", "://", "eyJ", "bearer ", "@", ":", " ", "0a" * 8, "cluster1")), st.text(max_size=8)
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=5).map("".join))
def test_the_short_look_says_what_the_whole_look_says(text: str) -> None:
    assert redacted(text) == logs._SECRET_TEXT.sub(REDACTED, text)
    assert redacted(text.encode()) == redacted(text)
    for secret in SECRETS:
        assert REDACTED in redacted(f"{text} {secret}")


def test_level_orders_and_the_signal_change_the_level_but_not_of_noisy_libraries(stream: io.StringIO) -> None:
    verbosity, log = Verbosity("info"), structlog.get_logger("hub")
    log.debug("before")
    verbosity.order("debug")
    log.debug("ordered")
    verbosity.order(None)
    log.debug("after")
    changed = "log level changed"
    assert ([line["event"] for line in lines(stream)], verbosity.level) == ([changed, "ordered", changed], "info")

    verbosity.order("error")
    log.warning("unheard")
    for _ in range(3):
        verbosity.order("warning")
    assert [line["event"] for line in lines(stream)] == [changed, changed]
    verbosity.toggle()
    assert verbosity.level == "debug"
    verbosity.order("error")
    assert verbosity.level == "debug"
    verbosity.toggle()
    assert verbosity.level == "error"

    Verbosity("info").order("debug")
    assert logging.getLogger("hub").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("grpc._cython.cygrpc").isEnabledFor(logging.DEBUG)
    assert not logging.getLogger("asyncio").isEnabledFor(logging.INFO)
    logs.set_level("info")


async def test_sigusr2_reaches_the_level_and_the_handler_before_it_comes_back(stream: io.StringIO) -> None:
    del stream
    before = signal.getsignal(signal.SIGUSR2)
    applied: asyncio.Queue[str] = asyncio.Queue()
    with verbosity_signal(Verbosity("info", applied.put_nowait)):
        for change in (["debug", "debug"], ["debug", "info"]):  # the more verbose level during the change, then the new level
            os.kill(os.getpid(), signal.SIGUSR2)
            assert [await applied.get(), await applied.get()] == change
    assert signal.getsignal(signal.SIGUSR2) == before


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1"}
UNSAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-00"}


def test_traceparent_is_parsed_by_the_rules_of_w3c() -> None:
    ours = f"{TRACE}-{SPAN}"
    known = [f"00-{ours}-01", f"00-{ours}-00", f" 00-{ours}-01 ", f"cc-{ours}-01-what-comes-later"]
    assert [text for text in known if parsed(text) is None] == []
    unknown = [f"00-{ours}-01-too-much", f"ff-{ours}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01"]
    unknown += [f"00-{TRACE.upper()}-{SPAN}-01", f"00-{TRACE[:-1]}-{SPAN}-01", f"00-{ours}", "", "\n\x00"]
    assert [text for text in unknown if parsed(text)] == []

    context = present(parsed(SENT["traceparent"], SENT["tracestate"]))
    assert (context, context.traceparent) == (TraceContext(TRACE, SPAN, sampled=True, state="vendor=1"), SENT["traceparent"])

    for state in ("v=" + "x" * 600, "v=\r\nx: y", "v=ü"):
        assert present(parsed(SENT["traceparent"], state)).state == "", state


def test_error_is_recorded_by_its_type_alone(subtests: pytest.Subtests) -> None:
    conflict, cancelled = ConflictError("edge1 was changed"), asyncio.CancelledError()
    for error, sort in ((conflict, "Conflict"), (KeyError("secret"), "KeyError"), (cancelled, "CancelledError")):
        with subtests.test(error=error, sort=sort), recorded() as kept:
            with pytest.raises(type(error)), tracing.span("work"):
                raise error
            (span,) = kept.spans
            assert span.status.status_code is StatusCode.ERROR
            assert (span.status.description, span.events, attributes(span)) == (None, (), {"error.type": sort})


def test_spans_are_empty_without_tracing_and_recorded_by_share_and_sampling(subtests: pytest.Subtests) -> None:
    with tracing.span("work", {"a": 1}) as span, tracing.within("more") as inner:
        span.note("late", 1)
        assert (span, inner, tracing.current(), tracing.carried()) == (NOTHING, NOTHING, None, ())
    with tracing.serving("get", SENT.get, {}):
        assert tracing.carried() == tuple(SENT.items())
    assert tracing.current() is None

    with recorded() as kept:
        with tracing.serving("watch", SENT.get, {}) as span:
            span.end()
            assert tracing.current() is None
            with tracing.within("read"):
                pass
            span.note("late", 1)
        assert [(span.name, attributes(span)) for span in kept.spans] == [("watch", {})]

    with recorded() as kept:
        with tracing.within("flush"):
            pass
        with tracing.serving("get", UNSAMPLED.get, {}), tracing.within("read"):
            assert tracing.carried() != ()
        assert kept.spans == []

    rows: list[tuple[float, dict[str, str], int]] = [(0.0, SENT, 0), (1.0, SENT, 1), (1.0, UNSAMPLED, 0), (0.0, {}, 0)]
    for share, sent, expected in [*rows, (1.0, {}, 1)]:
        with subtests.test(share=share, sent=sent), recorded(share) as kept:
            with tracing.serving("get", sent.get, {}):
                pass
            assert len(kept.spans) == expected


def test_collector_address_and_missing_extra_are_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    for url in ("collector:4317", "ftp://collector", "http://", "http://a/v1/traces", "http://me:canary@host:4317"):
        with pytest.raises(ValueError, match="write http://HOST:4317") as refused:
            telemetry.endpoint(url)
        assert "canary" not in str(refused.value), url
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk", None)
    with (
        pytest.raises(InvalidError, match=r"pip install 'muster-hub\[tracing\]'"),
        telemetry.sending(TraceExporter("hub", "http://127.0.0.1:4317")),
    ):
        pass
    assert tracing.span("work") is NOTHING


def test_programs_that_do_not_trace_load_nothing_of_opentelemetry() -> None:
    imported = "print([name for name in sys.modules if 'opentelemetry' in name])"
    script = f"import sys, hub.serve, spoke.app, spoke.__main__; {imported}"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


def test_names_of_services_and_processes_stand_on_what_is_sent() -> None:
    exporter, trace_exporter = InMemorySpanExporter(), TraceExporter("muster-hub", "http://nowhere", instance="hub-0")
    tracer, close = telemetry.tracer_of(trace_exporter, SimpleSpanProcessor(exporter))
    tracing.use(tracer)
    with tracing.span("work"):
        pass
    tracing.use(None)
    close()
    resource = exporter.get_finished_spans()[0].resource.attributes
    assert (resource["service.name"], resource["service.instance.id"]) == ("muster-hub", "hub-0")


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample by its name and labels, as Prometheus' own client reads them."""
    families = text_string_to_metric_families(text)
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples}


def registry(**bound: object) -> Registry:
    made = Registry()
    for name, value in bound.items():
        made.bind(gauge(name, "A number."), lambda value=value: value)  # type: ignore[misc]
    return made


def test_numbers_types_help_and_labels_are_read_back() -> None:
    numbers = {"whole": 3, "large": 2**53, "part": 0.1, "endless": math.inf, "below": -math.inf}
    assert samples(registry(**numbers).text()) == {(f"muster_{name}", ()): value for name, value in numbers.items()}
    assert math.isnan(samples(registry(none=math.nan).text())["muster_none", ()])

    text, made = 'a "quoted"\\ text\nof two lines', Registry()
    made.bind(gauge("odd", text, "first", "second"), lambda: {(text, "b"): 1, ("", "{}=,"): 2})
    (family,) = text_string_to_metric_families(made.text())
    assert family.documentation == text
    assert [(each.labels, each.value) for each in family.samples] == [
        ({"first": text, "second": "b"}, 1),
        ({"first": "", "second": "{}=,"}, 2),
    ]

    made = Registry()
    made.bind(counter("grown_total", "Grows."), lambda: 1)
    made.bind(gauge("level", "Goes up and down."), lambda: 1)
    made.bind(histogram("spread", "Is distributed."), Distribution)
    types = {family.name: family.type for family in text_string_to_metric_families(made.text())}
    assert types == {"muster_grown": "counter", "muster_level": "gauge", "muster_spread": "histogram"}


def test_distributions_and_tallies_have_the_series_that_happened() -> None:
    spread = Distribution((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        spread.observe(value)
    made = Registry()
    made.bind(histogram("spread", "Is distributed.", "of"), lambda: {"this": spread})
    read = samples(made.text())
    buckets = {bound: read["muster_spread_bucket", (("le", bound), ("of", "this"))] for bound in ("0.1", "1.0", "+Inf")}
    assert (buckets, read["muster_spread_count", (("of", "this"),)]) == ({"0.1": 2, "1.0": 3, "+Inf": 4}, 4)
    assert read["muster_spread_sum", (("of", "this"),)] == pytest.approx(7.65)

    tally, made = Tally(), Registry()
    made.bind(counter("requests_total", "Requests.", "verb", "code"), lambda: tally)
    assert made.text() == ""
    tally["get", "200"] += 2
    assert samples(made.text()) == {("muster_requests_total", (("code", "200"), ("verb", "get"))): 2}

    assert registry(unknown=None).text() == ""


def test_broken_metric_leaves_the_others_readable_and_duplicates_are_refused() -> None:
    made = registry(fine=1)
    made.bind(gauge("wrong", "Has one label.", "one"), lambda: {("a", "b"): 1})
    assert samples(made.text()) == {("muster_fine", ()): 1}
    values: list[int] = []
    made = registry(fine=1)
    made.bind(gauge("broken", "Fails."), lambda: values[0])
    assert samples(made.text()) == {("muster_fine", ()): 1}
    values.append(5)
    assert samples(made.text())["muster_broken", ()] == 5

    made = registry(once=1)
    check_refusal(ValueError, made.bind, gauge("once", "Again."), lambda: 2, match="muster_once")
    assert registry(mine=1).text() != registry(yours=1).text()
    for asked in (False, True):
        made = Registry(detailed=asked)
        made.bind(gauge("cluster", "One of each cluster.", "cluster", detailed=True), lambda: {"cluster1": 1})
        assert (bool(made.text()), bool(made.metrics)) == (asked, asked)


async def test_a_scrape_looks_everywhere_at_the_same_time_and_then_reads() -> None:
    both, seen, made = asyncio.Barrier(2), list[int](), Registry()

    async def look() -> None:
        seen.append(await both.wait())

    for _ in range(2):
        made.add_refresh(look)
    made.bind(gauge("seen", "Looks."), lambda: len(seen))
    assert samples(await made.scrape()) == {("muster_seen", ()): 2}
