"""Logging of a process: events with fields, as JSON lines or for a console, without secrets.

The `__main__` of each program calls `configure` once. Other modules only use `structlog.get_logger(__name__)`. Log lines of
libraries that use the standard logging get the same stream, format and redaction. While a request is served, every line
contains its `request_id`, its `cluster` and its trace (`of_request`).
"""

import json
import logging
import os
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
"""Nesting levels of a logged value; deeper lists and mappings are redacted."""
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
"""Matches PEM private keys, plain or base64; bootstrap tokens; JSON web tokens; passwords in URLs; text after "Bearer"."""
_MARKS = ("://", "eyJ", "-----BEGIN ", "LS0tLS1CRUdJTi")
_TOKEN_LENGTH = 49
_NOISY = {
    "apscheduler": logging.WARNING,
    "aiohttp.access": logging.WARNING,
    "alembic": logging.WARNING,
    "asyncio": logging.WARNING,
    # At DEBUG, gRPC logs a server object that is being freed; the use of this record crashes the process.
    "grpc": logging.INFO,
    # OpenTelemetry: only warnings about the export of spans, such as an unavailable collector.
    "opentelemetry": logging.WARNING,
    # The driver logs a warning for each failed statement, in addition to the exception.
    "psycopg": logging.ERROR,
}
LEVELS = ("debug", "info", "warning", "error")
"""Selectable levels, most verbose first."""
_GRPC = "grpc._cython.cygrpc"


Renderer = Callable[[Any, str, MutableMapping[str, Any]], str | bytes]


class LogFormat(StrEnum):
    AUTO = "auto"
    """CONSOLE on a terminal, else JSON."""
    JSON = "json"
    CONSOLE = "console"


def redacted(value: Any, deepest: int = DEEPEST) -> Any:
    """Return `value` with REDACTED in place of texts that look like secrets, and of parts nested deeper than `deepest`.

    Bytes are decoded as text.
    """
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
    """Return False only if _SECRET_TEXT cannot match. This saves the full search, a quarter of the cost of a line."""
    for mark in _MARKS:
        if mark in text:
            return True
    return (len(text) >= _TOKEN_LENGTH and "." in text) or "bearer " in text.lower()


@lru_cache(maxsize=1024)
def _is_secret(field: str) -> bool:
    return _SECRET_FIELD.search(field) is not None


def redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor that redacts every field. It runs after stack traces were formatted as text, before rendering."""
    for key, value in event.items():
        event[key] = REDACTED if _is_secret(key) else redacted(value)
    return event


class _Target(logging.StreamHandler[TextIO]):
    """The stream and the format of this process's log."""

    def __init__(self, stream: TextIO, form: LogFormat) -> None:
        super().__init__(stream)
        is_terminal = stream.isatty()
        chosen = LogFormat.CONSOLE if is_terminal else LogFormat.JSON
        self.form = chosen if form is LogFormat.AUTO else form
        self.has_colors = is_terminal and not os.environ.get("NO_COLOR")

    def write(self, text: str) -> None:
        """Write lines. Errors of a closed stream are ignored."""
        self.acquire()
        try:
            self.stream.write(f"{text}\n")
            self.flush()
        except (OSError, ValueError):
            pass
        finally:
            self.release()


class _Written:
    """The last structlog processor. It renders and writes a line directly, without LogRecord and formatter.

    This halves the cost of a line.
    """

    def __init__(self, render: Renderer, target: _Target) -> None:
        self._render = render
        self._target = target

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> NoReturn:
        text = self._render(logger, method, event)
        self._target.write(text if isinstance(text, str) else text.decode())
        raise structlog.DropEvent


def configure(level: str = "info", form: LogFormat = LogFormat.JSON, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard logging of this process. `stream` None: stderr. A later call replaces the set-up."""
    target = _Target(stream or sys.stderr, form)
    stamp = "iso" if target.form is LogFormat.JSON else "%Y-%m-%d %H:%M:%SZ"
    shared: list[Processor] = [
        merge_contextvars,
        _traced,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt=stamp, utc=True, key="time"),
    ]
    formatted: list[Processor] = [structlog.processors.format_exc_info, redact]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *formatted,
            _Written(_renderer(target), target),
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    target.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *formatted, _renderer(target)],
        )
    )
    # no line contains the caller's file, threads or processes, so logging need not determine them
    logging._srcfile = None  # noqa: SLF001 - the standard library advises it
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    root = logging.getLogger()
    root.handlers[:] = [target]
    set_level(level)
    logging.getLogger(_GRPC).addFilter(not_of_a_peer_that_left)


def set_level(level: str) -> None:
    """Set the lowest logged level, one of LEVELS. Noisy libraries have a higher level of their own."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name, least in _NOISY.items():
        logging.getLogger(name).setLevel(max(least, root.level))


def _traced(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    context = tracing.current()
    if context is not None:
        event["trace_id"], event["span_id"] = context.trace_id, context.span_id
    return event


def not_of_a_peer_that_left(record: logging.LogRecord) -> bool:
    """Return False for gRPC's stack trace about a peer that disconnected before the response, because it is not an error."""
    failure = record.exc_info[0] if record.exc_info else None
    return failure is None or failure.__name__ != "ExecuteBatchError"


def of_request(request_id: str, **fields: str) -> AbstractContextManager[None]:
    """Context manager: log lines in its block, and of tasks that start in it, contain `request_id` and `fields`.

    The block must begin and end in the same task.
    """
    return bound_contextvars(request_id=request_id, **fields)


def also(**fields: str) -> None:
    """Add fields to the log lines of the current request until its task or block ends."""
    bind_contextvars(**fields)


def request_id() -> str:
    """Return the id of the current request; empty if there is none."""
    return str(get_contextvars().get("request_id") or "")


def flush() -> None:
    """Flush all log handlers. Called last by each program, also after a failure."""
    for target in logging.getLogger().handlers:
        try:
            target.flush()
        except (OSError, ValueError):
            continue  # the stream is closed


def show(title: str, rows: Mapping[str, str], *commands: str) -> None:
    """Write a block with the state of the program and the next commands, for a user at a terminal. A JSON log omits it."""
    width = max(map(len, rows))
    lines = [title, "", *(f"  {name:<{width}}  {value}" for name, value in rows.items()), ""]
    text = "\n".join(["", *lines, *(f"    {command}" for command in commands), ""])
    for target in logging.getLogger().handlers:
        if isinstance(target, _Target) and target.form is LogFormat.CONSOLE:
            target.write(redacted(text))


def _renderer(target: _Target) -> Renderer:
    if target.form is LogFormat.JSON:
        encoder = json.JSONEncoder(ensure_ascii=False)
        return lambda _logger, _method, event: encoder.encode(event)  # `redact` has replaced values that JSON does not have
    plain = structlog.dev.plain_traceback
    return structlog.dev.ConsoleRenderer(colors=target.has_colors, exception_formatter=plain, timestamp_key="time")


class LogOnce:
    """Logs a repeated failure only once, until its text changes or `reset` is called after a success."""

    def __init__(self, log: Any) -> None:
        """`log`: the structlog logger of the module whose failures are logged."""
        self._log = log
        self.text = ""
        """Text of the current failure; "" after `reset`."""

    def warning(self, event: str, error: object, **fields: Any) -> bool:
        """Log `event` with the text of `error`, unless the last failure had the same text. Return whether it was logged."""
        return self._logged(self._log.warning, event, error, fields)

    def error(self, event: str, error: object, **fields: Any) -> bool:
        """Log `event` at the level `error` with the text of `error`; otherwise like `warning`."""
        return self._logged(self._log.error, event, error, fields)

    def reset(self) -> bool:
        """Record a success, so that the next failure is logged in any case. Return whether a failure preceded."""
        failed, self.text = bool(self.text), ""
        return failed

    def _logged(self, level: Any, event: str, error: object, fields: dict[str, Any]) -> bool:
        before, self.text = self.text, str(error) or type(error).__name__
        if self.text == before:
            return False
        level(event, error=self.text, **fields)
        return True
