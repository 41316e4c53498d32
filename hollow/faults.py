"""The faults of a hollow cluster, which can change while it runs, and the middleware that applies them to requests."""

import asyncio
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, Self

from aiohttp import web
from aiohttp.typedefs import Handler

from machinery.apiserver.http.filters import Incoming
from machinery.apiserver.http.responses import ResponseForm, error_answer
from machinery.durations import parse_duration
from machinery.errors import ForbiddenError, InvalidError, MethodNotAllowedError, MusterError, UnavailableError

ADMIN_PATH = "/hollow/faults"
"""URL path: GET returns the active faults, PUT replaces them. No fault affects this path. Only the administrator may use it."""
_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True)
class Faults:
    """Faults of a cluster. The default is no fault. ADMIN_PATH and the command line use names with dashes (`not-live`)."""

    slow: timedelta = timedelta()
    """Delay of every response, including probes."""
    error: bool = False
    """Every API request, including probes, gets the response 500."""
    hang: bool = False
    """Requests are accepted and never answered."""
    not_live: bool = False
    """/livez and /healthz fail; the API works."""
    no_livez: bool = False
    """/livez returns 404, as before Kubernetes 1.16; /healthz is served."""
    refuse_secret_writes: bool = False
    """Creating, changing and deleting secrets is forbidden."""
    stall_before_write: int = 0
    """n: the n-th write of a secret from now on, and all later writes, are neither executed nor answered; 0: off."""
    stall_after_write: int = 0
    """n: the n-th secret write from now on is executed, not answered; later ones are neither executed nor answered; 0: off."""

    @classmethod
    def named(cls, *settings: str) -> Self:
        """Parse faults of the command line: `error`, `not-live`, `slow=2s`. Raises InvalidError for an invalid fault."""
        words = (setting.partition("=") for setting in settings)
        return cls.from_document({word: value if equals else True for word, equals, value in words})

    @classmethod
    def from_document(cls, document: dict[str, Any]) -> Self:
        """Parse a document that was sent to ADMIN_PATH. Faults that it does not contain are off. Raises InvalidError."""
        known = {field.name.replace("_", "-"): field.name for field in fields(cls)}
        if unknown := sorted(set(document) - set(known)):
            raise InvalidError(f'no fault is called "{unknown[0]}": use {", ".join(sorted(known))}')
        return cls(**{known[word]: _read(word, value) for word, value in document.items()})

    def document(self) -> dict[str, Any]:
        on = {field.name.replace("_", "-"): getattr(self, field.name) for field in fields(self)}
        on["slow"] = f"{self.slow.total_seconds():g}s" if self.slow else False
        return {word: value for word, value in on.items() if value}


def _read(word: str, value: object) -> Any:
    if word == "slow":
        try:
            return parse_duration(str(value))
        except ValueError:
            raise InvalidError("slow needs a duration: slow=2s, slow=500ms") from None
    if not word.startswith("stall-"):
        return value is True
    if not str(value).isdecimal() or not int(str(value)):
        raise InvalidError(f"{word} needs a number from 1 on: {word}=3")
    return int(str(value))


HEALTHY = Faults()


class FaultInjection:
    """The active faults, the aiohttp middleware that applies them, and the page at ADMIN_PATH."""

    def __init__(self) -> None:
        self.faults = HEALTHY
        self._switched = asyncio.Event()
        self._watches: set[asyncio.Transport] = set()
        self._writes = 0
        self._stalled = asyncio.Event()

    def switch(self, faults: Faults) -> None:
        """Replace the faults. Requests that hang because of earlier faults continue. `error` and `hang` abort open watches."""
        self.faults = faults
        self._writes = 0
        self._stalled.clear()
        self.release()
        if faults.error or faults.hang:
            self.cut_watches()

    def release(self) -> None:
        self._switched.set()
        self._switched = asyncio.Event()

    async def stalled(self) -> None:
        await self._stalled.wait()

    def cut_watches(self) -> None:
        for connection in self._watches:
            connection.abort()

    async def probe(self) -> None:
        """Raise RuntimeError while the fault `not_live` is set. The API server runs this method as a health check."""
        if self.faults.not_live:
            raise RuntimeError("the cluster has the fault `not-live`")

    @web.middleware
    async def apply(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path == ADMIN_PATH:
            return await handler(request)
        if self.faults.slow > timedelta():
            await asyncio.sleep(self.faults.slow.total_seconds())
        if self.faults.hang:
            await self._switched.wait()
        writes_secret = request.method in _WRITES and "secrets" in request.path.split("/")
        refusal: MusterError | None = None
        if self.faults.error:
            refusal = MusterError("Internal error occurred: the cluster has the fault `error`")
        elif self.faults.refuse_secret_writes and writes_secret:
            refusal = ForbiddenError("secrets is forbidden: the cluster has the fault `refuse-secret-writes`")
        if refusal is not None:
            return error_answer(refusal, ResponseForm())
        if self.faults.no_livez and request.path.startswith("/livez"):
            return web.Response(status=404, text="404 page not found\n")
        if writes_secret and (self.faults.stall_before_write or self.faults.stall_after_write):
            return await self._stall(request, handler)
        connection = request.transport
        if connection is None or "watch" not in request.query:
            return await handler(request)
        self._watches.add(connection)
        try:
            return await handler(request)
        finally:
            self._watches.discard(connection)

    async def _stall(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Delay the response until the faults change. The change does not cause the execution of a stalled write."""
        self._writes += 1
        fatal, switched = self.faults.stall_before_write or self.faults.stall_after_write, self._switched
        number = self._writes
        done = number < fatal or (number == fatal and bool(self.faults.stall_after_write))
        refusal = error_answer(UnavailableError("the cluster has a fault that stalls writes"), ResponseForm())
        answer = await handler(request) if done else refusal
        if number >= fatal:
            self._stalled.set()
            await switched.wait()
        return answer

    async def page(self, incoming: Incoming) -> web.Response:
        """Answer a request for ADMIN_PATH. Raises InvalidError, MethodNotAllowedError."""
        request = incoming.request
        if request.method not in ("GET", "PUT"):
            raise MethodNotAllowedError("use GET or PUT")
        if request.method == "PUT":
            try:
                document = await request.json()
            except ValueError:
                document = None
            if not isinstance(document, dict):
                raise InvalidError("the body must be a JSON object with the faults")
            self.switch(Faults.from_document(document))
        return web.json_response(self.faults.document())
