"""Logging of a process: events with fields, as JSON lines or for a console, and never a secret among them.

Called once by each program's `__main__`; every other module only takes `structlog.get_logger(__name__)`. Lines of libraries
that use the standard logging end in the same stream and form, and pass through the same redaction. While a request is served,
its `request_id`, the `cluster` that asks, and its trace stand on every line (`of_request`).
"""

import json
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from enum import StrEnum
from functools import lru_cache
from typing import Any, NoReturn, TextIO

import structlog
from structlog.contextvars import bind_contextvars, bound_contextvars, get_contextvars, merge_contextvars
from structlog.typing import Processor

from machinery.observability import tracing

REDACTED = "[redacted]"
DEEPEST = 64
"""Levels of a value: what is nested further is left out, whatever it is."""
_SECRET_FIELD = re.compile(r"(?i)(private_?key|client_?key|password|passwd|secret_?value|bearer|authorization|token)(_?data)?$")
_SECRET_TEXT = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(-----END [A-Z0-9 ]*PRIVATE KEY-----|$)"
    r"|LS0tLS1CRUdJTi[A-Za-z0-9+/]*(?:UFJJVkFURSBLRV|BSSVZBVEUgS0VZ|QUklWQVRFIEtFW)[A-Za-z0-9+/=]*"
    r"|\b[0-9a-f]{16}\.[a-z0-9]{32}\b"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"
    r"|(?<=://)[^/\s:@]+:[^/\s@]+(?=@)"
    r"|(?i:(?<=bearer )[A-Za-z0-9._~+/=-]{8,})",
    re.DOTALL,
)
"""A PEM private key, as it is or in base64; a bootstrap token; a JSON web token; a password in a URL; what follows "Bearer"."""
_MARKS = ("://", "eyJ", "-----BEGIN ", "LS0tLS1CRUdJTi")
_TOKEN_LENGTH = 49
"""Of a bootstrap token, its dot included."""
_NOISY = {
    "apscheduler": logging.WARNING,
    "aiohttp.access": logging.WARNING,
    "alembic": logging.WARNING,
    "asyncio": logging.WARNING,
    # At DEBUG it logs a server that is being freed, and the record then holds what no longer exists: the process crashes.
    "grpc": logging.INFO,
    # What tells of the sending of spans: that a collector is away, and no more.
    "opentelemetry": logging.WARNING,
    # It warns of what it raises as well, once for each statement that fails.
    "psycopg": logging.ERROR,
}
LEVELS = ("debug", "info", "warning", "error")
"""What may be asked for, the most first."""
_GRPC = "grpc._cython.cygrpc"


Renderer = Callable[[Any, str, MutableMapping[str, Any]], str | bytes]


class LogFormat(StrEnum):
    JSON = "json"
    CONSOLE = "console"


def redacted(value: Any, deepest: int = DEEPEST) -> Any:
    """`value` without what looks like a secret, and without what stands deeper than anybody reads. Bytes are read as text."""
    if isinstance(value, str):
        return _SECRET_TEXT.sub(REDACTED, value) if _may_hold_secrets(value) else value
    if isinstance(value, bytes | bytearray):
        return redacted(bytes(value).decode("utf-8", "replace"))
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _without_secrets(value, deepest - 1) if deepest else REDACTED
    if value is None or isinstance(value, bool | int | float):
        return value
    return redacted(str(value))


def _without_secrets(value: Mapping[Any, Any] | Iterable[Any], deepest: int) -> Any:
    if isinstance(value, Mapping):
        return {key: REDACTED if _is_secret(str(key)) else redacted(item, deepest) for key, item in value.items()}
    return [redacted(item, deepest) for item in value]


def _may_hold_secrets(text: str) -> bool:
    """False only where `_SECRET_TEXT` matches nowhere: to look for all of it is a quarter of what a line costs."""
    for mark in _MARKS:
        if mark in text:
            return True
    return (len(text) >= _TOKEN_LENGTH and "." in text) or "bearer " in text.lower()


@lru_cache(maxsize=1024)
def _is_secret(field: str) -> bool:
    return _SECRET_FIELD.search(field) is not None


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The processor just before rendering: no field passes it unseen. Runs after stacks are turned into text."""
    for key, value in event.items():
        event[key] = REDACTED if _is_secret(key) else redacted(value)
    return event


class _Written:
    """The last processor of our own lines: renders, and writes at once what others send through a record and a formatter.

    That was half of what a line costs. A stream that takes nothing any more is nobody's failure.
    """

    def __init__(self, render: Renderer, target: "logging.StreamHandler[TextIO]") -> None:
        self._render = render
        self._target = target

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        text = self._render(logger, method, event)
        self._target.acquire()
        try:
            self._target.stream.write(f"{text if isinstance(text, str) else text.decode()}\n")
            self._target.flush()
        except (OSError, ValueError):
            pass
        finally:
            self._target.release()
        raise structlog.DropEvent


def configure(level: str = "info", form: LogFormat = LogFormat.JSON, stream: TextIO | None = None) -> None:
    """Sets up structlog and the standard logging of this process; a second call replaces the first."""
    shared: list[Processor] = [
        merge_contextvars,
        _traced,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    told: list[Processor] = [structlog.processors.format_exc_info, redact]
    target = logging.StreamHandler(stream or sys.stderr)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *told,
            _Written(_renderer(form), target),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    target.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *told, _renderer(form)],
        )
    )
    # what no line shows is not looked up for each: the caller's file, threads, processes
    logging._srcfile = None  # noqa: SLF001 - the standard library advises it
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [target]
    set_level(level)
    logging.getLogger(_GRPC).addFilter(not_of_a_peer_that_left)


def set_level(level: str) -> None:
    """From now on `level`, one of LEVELS, is the least that is logged; libraries that are noisy tell less than that."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name, least in _NOISY.items():
        logging.getLogger(name).setLevel(max(least, root.level))


def _traced(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The trace in which a line is written, where there is one."""
    context = tracing.current()
    if context is not None:
        event["trace_id"], event["span_id"] = context.trace_id, context.span_id
    return event


def not_of_a_peer_that_left(record: logging.LogRecord) -> bool:
    """False for gRPC's stack trace about a peer that left before its answer: nothing went wrong on this side."""
    failure = record.exc_info[0] if record.exc_info else None
    return failure is None or failure.__name__ != "ExecuteBatchError"


def of_request(request_id: str, **fields: str) -> AbstractContextManager[None]:
    """A block whose lines, and those of the tasks that begin in it, are a request's. Enter and leave it in one task."""
    return bound_contextvars(request_id=request_id, **fields)


def also(**fields: str) -> None:
    """What is only known later of the request that is served: on its lines from now on, until its task or block ends."""
    bind_contextvars(**fields)


def request_id() -> str:
    """Of the request that is served here; empty: of none."""
    return str(get_contextvars().get("request_id") or "")


def flush() -> None:
    """Writes out what is still buffered: the last act of a program, also when it fails."""
    for target in logging.getLogger().handlers:
        try:
            target.flush()
        except (OSError, ValueError):
            continue  # the stream is gone: nobody is left to tell


_ENCODER = json.JSONEncoder(ensure_ascii=False)


def _as_json(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> str:
    """After `redact`, which leaves nothing that JSON has no word for."""
    return _ENCODER.encode(event)


def _renderer(form: LogFormat) -> Renderer:
    if form is LogFormat.JSON:
        return _as_json
    return structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback)
