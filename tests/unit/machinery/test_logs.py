"""What a log line shows, and what it never does."""

import base64
import io
import json
import logging
from datetime import date
from pathlib import Path

import pytest
import structlog

from machinery import logs

PEM = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIBcanarycanarycanary\n-----END EC PRIVATE KEY-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


@pytest.fixture
def stream() -> io.StringIO:
    target = io.StringIO()
    logs.configure("info", logs.LogFormat.JSON, target)
    return target


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_fields(stream: io.StringIO) -> None:
    structlog.get_logger("hub").info("cluster accepted", cluster="c1")
    (line,) = lines(stream)
    assert (line["event"], line["cluster"], line["level"], line["logger"]) == ("cluster accepted", "c1", "info", "hub")


def test_lines_below_the_level_are_not_written(stream: io.StringIO) -> None:
    structlog.get_logger("hub").debug("nothing")
    assert lines(stream) == []


def test_a_library_that_uses_standard_logging_writes_into_the_same_stream(stream: io.StringIO) -> None:
    logging.getLogger("some.library").warning("port %d is taken", 8443)
    assert lines(stream)[0]["event"] == "port 8443 is taken"


def test_lines_of_ours_and_of_libraries_come_in_order(stream: io.StringIO) -> None:
    for number in range(3):
        structlog.get_logger("hub").info(f"ours {number}")
        logging.getLogger("some.library").warning("theirs %d", number)
    assert [line["event"] for line in lines(stream)] == [
        f"{whose} {number}" for number in range(3) for whose in ("ours", "theirs")
    ]


def test_a_field_that_json_has_no_word_for_is_told_as_text(stream: io.StringIO) -> None:
    structlog.get_logger("hub").info("odd", where=Path("a"), many={1}, raw=b"\xff", none=None, deep={"at": date(2026, 1, 1)})
    (line,) = lines(stream)
    told = {"where": "a", "many": [1], "raw": "\ufffd", "none": None, "deep": {"at": "2026-01-01"}}
    assert {name: line[name] for name in told} == told


def test_a_stream_that_is_closed_is_nobodys_failure(stream: io.StringIO) -> None:
    stream.close()
    structlog.get_logger("hub").info("nobody hears this")


def test_grpc_never_logs_at_debug_because_a_record_of_a_freed_server_ends_the_process(stream: io.StringIO) -> None:
    logs.configure("debug", logs.LogFormat.JSON, stream)
    assert not logging.getLogger("grpc._cython.cygrpc").isEnabledFor(logging.DEBUG)
    assert structlog.get_logger("hub").isEnabledFor(logging.DEBUG)


class ExecuteBatchError(Exception):
    """As gRPC names what it raises for a peer that left."""


@pytest.mark.parametrize(("raised", "told"), [(ExecuteBatchError(), 0), (KeyError("of ours"), 1)], ids=["left", "ours"])
def test_a_peer_that_left_before_its_answer_is_no_error(stream: io.StringIO, raised: Exception, told: int) -> None:
    logging.getLogger("grpc._cython.cygrpc").error("raised in core", exc_info=raised)
    logging.getLogger("grpc._cython.cygrpc").warning("something else")
    assert len(lines(stream)) == told + 1


def test_context_of_a_request_stands_on_each_of_its_lines(stream: io.StringIO) -> None:
    with structlog.contextvars.bound_contextvars(request="r1"):
        structlog.get_logger("hub").info("one")
    assert lines(stream)[0]["request"] == "r1"


@pytest.mark.parametrize(
    "value",
    [
        PEM,
        PEM.encode(),
        base64.b64encode(PEM.encode()).decode(),
        {"tls": {"inner": [PEM]}},
        ValueError(f"cannot read {PEM}"),
        "postgresql://muster:canary@db/hub",
        "Authorization: Bearer canarycanarycanary",
        "eyJhbGciOiJSUzI1NiJ9.canarycanarycanary.canary",
        "the token 0123456789abcdef.canarycanarycanarycanarycanaryca is",
    ],
    ids=["pem", "bytes", "base64", "nested", "error", "url", "bearer", "jwt", "bootstrap token"],
)
def test_no_field_shows_a_secret(stream: io.StringIO, value: object) -> None:
    structlog.get_logger("hub").info("event", field=value)
    text = stream.getvalue()
    assert "canary" not in text.lower()
    assert base64.b64encode(PEM.encode()).decode()[60:90] not in text
    assert logs.REDACTED in text


def test_a_key_in_a_stack_trace_is_not_shown(stream: io.StringIO) -> None:
    try:
        raise ValueError(PEM)
    except ValueError:
        structlog.get_logger("hub").exception("failed")
    assert "canary" not in stream.getvalue()
    assert "ValueError" in stream.getvalue()


def test_a_field_that_is_named_like_a_secret_is_not_shown(stream: io.StringIO) -> None:
    structlog.get_logger("hub").info("event", client_key_data="canary", nested={"password": "canary"})
    assert "canary" not in stream.getvalue()


def test_a_certificate_may_be_shown(stream: io.StringIO) -> None:
    structlog.get_logger("hub").info("event", certificate=CERTIFICATE)
    assert lines(stream)[0]["certificate"] == CERTIFICATE


def test_flushing_into_a_closed_stream_is_no_failure(stream: io.StringIO) -> None:
    stream.close()
    logs.flush()
    assert stream.closed
    logging.getLogger().handlers.clear()
