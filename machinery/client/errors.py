"""Conversion of an API server's error responses and of transport errors to `machinery.errors`."""

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from machinery.errors import BY_REASON, CODES, Cause, DeadlineError, ErrorSubject, MusterError, UnavailableError

_BY_CODE = {code: BY_REASON[reason] for reason, code in CODES.items() if reason in BY_REASON}
_BY_REASON: Mapping[str, type[MusterError]] = {**BY_REASON, "ServerTimeout": DeadlineError}
_SHOWN = 200


def from_answer(status: int, body: bytes, *, retry_after: str | None = None) -> MusterError:
    """Return the error of a response: by the reason in its Status, else by the HTTP code, else UnavailableError."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if isinstance(document, dict) and document.get("kind") == "Status":
        return from_status(document, code=status, retry_after=retry_after)
    text = " ".join(body.decode(errors="replace").split())[:_SHOWN]
    message = f"the API server answered {status}" + (f": {text}" if text else "")
    return _BY_CODE.get(status, UnavailableError)(message, retry_after=_seconds(retry_after))


def from_status(document: Mapping[str, Any], *, code: int | None = None, retry_after: str | None = None) -> MusterError:
    """Return the error of a Status document from a response body or an ERROR event."""
    details = document.get("details") or {}
    code = code or int(document.get("code") or 0)
    error = _BY_REASON.get(str(document.get("reason") or ""), _BY_CODE.get(code, UnavailableError))
    causes = details.get("causes") or ()
    return error(
        str(document.get("message") or f"the API server answered {code}"),
        subject=ErrorSubject(*(str(details.get(key) or "") for key in ("name", "group", "kind", "uid"))),
        causes=[Cause(*(str(cause.get(key) or "") for key in ("reason", "message", "field"))) for cause in causes],
        retry_after=_seconds(details.get("retryAfterSeconds") or retry_after),
    )


def from_transport(server: str, error: Exception) -> MusterError:
    """Return the error of a request to `server` that got no response."""
    if isinstance(error, TimeoutError):
        return DeadlineError(f"no answer from {server} in time")
    return UnavailableError(f"cannot reach {server}: {error or type(error).__name__}")


def _seconds(value: object) -> timedelta | None:
    text = str(value or "")
    return timedelta(seconds=int(text)) if text.isdigit() and int(text) > 0 else None
