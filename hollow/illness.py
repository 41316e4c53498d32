"""Middleware that applies a hollow cluster's faults to all its requests, and the admin path that sets them."""

import asyncio
from datetime import timedelta

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from hollow.faults import Faults
from machinery.apiserver.access import Authenticator
from machinery.errors import InvalidError, MusterError
from machinery.identity import OPERATOR_GROUP

ADMIN_PATH = "/hollow/faults"
"""GET returns the active faults, PUT replaces them. Works under every fault, for the administrator only."""

_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class Illness:
    """The active faults, and the aiohttp middleware that applies them."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._faults = Faults()
        self._switched = asyncio.Event()
        self._watches: set[asyncio.Transport] = set()
        self._writes = 0
        self._stalled = asyncio.Event()

    @property
    def faults(self) -> Faults:
        return self._faults

    def switch(self, faults: Faults) -> None:
        """Replace the faults from the next request on. Hanging requests continue; `error` and `hang` cut open watches."""
        self._faults = faults
        self._writes = 0
        self._stalled.clear()
        self.release()
        if faults.error or faults.hang:
            self.cut_watches()

    def release(self) -> None:
        """Let the hanging requests continue."""
        self._switched.set()
        self._switched = asyncio.Event()

    async def stalled(self) -> None:
        """Wait until a write of a secret stalls."""
        await self._stalled.wait()

    def cut_watches(self) -> None:
        """Abort the connections of all open watches, as when a server crashes."""
        for connection in self._watches:
            connection.abort()

    async def probe(self) -> None:
        """Raises while the fault `not_live` is set."""
        if self._faults.not_live:
            raise RuntimeError("the cluster was told not to be live")

    def middleware(self) -> Middleware:
        @web.middleware
        async def act(request: web.Request, handler: Handler) -> web.StreamResponse:
            if request.path == ADMIN_PATH:
                return await self._administer(request)
            if refusal := await self._afflict(request):
                return refusal
            if _writes_a_secret(request) and (self._faults.stall_before_write or self._faults.stall_after_write):
                return await self._stall(request, handler)
            connection = request.transport
            if connection is None or "watch" not in request.query:
                return await handler(request)
            self._watches.add(connection)
            try:
                return await handler(request)
            finally:
                self._watches.discard(connection)

        return act

    async def _afflict(self, request: web.Request) -> web.Response | None:
        if self._faults.slow > timedelta():
            await asyncio.sleep(self._faults.slow.total_seconds())
        if self._faults.hang:
            await self._switched.wait()
        if self._faults.error:
            return _status(500, "InternalError", "Internal error occurred: the cluster was told to fail")
        if self._faults.no_livez and request.path.startswith("/livez"):
            return web.Response(status=404, text="404 page not found\n")
        if self._faults.refuse_secret_writes and _writes_a_secret(request):
            return _status(403, "Forbidden", "secrets is forbidden: the cluster was told to refuse writing secrets")
        return None

    async def _stall(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Hold back the response until the faults are switched. A write that was not executed by then is not executed."""
        self._writes += 1
        fatal, switched = self._faults.stall_before_write or self._faults.stall_after_write, self._switched
        mine = self._writes
        done = mine < fatal or (mine == fatal and bool(self._faults.stall_after_write))
        answer = await handler(request) if done else _status(503, "ServiceUnavailable", "the cluster was told to stall")
        if mine >= fatal:
            self._stalled.set()
            await switched.wait()
        return answer

    async def _administer(self, request: web.Request) -> web.Response:
        try:
            actor = await self._authenticator.authenticate(request)
            if OPERATOR_GROUP not in actor.groups:
                return _status(403, "Forbidden", "only the administrator may look at the faults")
            if request.method == "PUT":
                self.switch(Faults.from_document(await _document(request)))
            elif request.method != "GET":
                return _status(405, "MethodNotAllowed", "use GET or PUT")
        except MusterError as error:
            return _status(_CODES.get(error.reason, 500), error.reason, error.message)
        return web.json_response(self._faults.document())


_CODES = {"Unauthorized": 401, "Invalid": 422}


def _writes_a_secret(request: web.Request) -> bool:
    return request.method in _WRITES and "secrets" in request.path.split("/")


async def _document(request: web.Request) -> dict[str, object]:
    try:
        document = await request.json()
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise InvalidError("faults are told as a JSON object")
    return document


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }
    return web.json_response(body, status=code)
