"""`/debug/flags/v`, the path at which Kubernetes servers change their log level: here for all replicas, and for a limited time.

GET returns the level. PUT with a level or `{"level": "debug", "for": "15m"}` as body sets one. DELETE ends that. RBAC on the
path authorizes it.
"""

from datetime import timedelta

import msgspec
from aiohttp import web

from hub.api.hubreplicas import USUAL_LOG_LEVEL, LogLevelOrder
from hub.ports import Store
from hub.registry.hubreplicas import service as orders
from machinery.apiserver.http.filters import Incoming
from machinery.apiserver.http.responses import ResponseForm, value_answer
from machinery.durations import format_duration, parse_duration
from machinery.errors import BadRequestError, MethodNotAllowedError
from machinery.lifecycle.process import Verbosity
from machinery.meta.timestamps import format_time

PATH = "/debug/flags/v"


class LogLevelRequest(msgspec.Struct):
    """The body of a PUT."""

    level: str
    lasts: str = msgspec.field(default="", name="for")


class LogLevel:
    """The page. `verbosity`: this replica's."""

    def __init__(self, store: Store, verbosity: Verbosity, replica: str) -> None:
        self._store = store
        self._verbosity = verbosity
        self._replica = replica

    async def __call__(self, incoming: Incoming) -> web.Response:
        request = incoming.request
        match request.method:
            case "GET" | "HEAD":
                order = await self._store.read(orders.standing_log_level)
            case "PUT":
                wanted = _wanted(await request.read())
                order = await self._store.run(orders.order_log_level, wanted.level, _lasts(wanted.lasts), incoming.actor.user)
                self._verbosity.order(order.level)
            case "DELETE":
                await self._store.run(orders.clear_log_level)
                self._verbosity.order(None)
                order = None
            case _:
                raise MethodNotAllowedError("GET tells the level, PUT orders one, DELETE takes that back")
        return await value_answer(request, self._told(order), ResponseForm())

    def _told(self, order: LogLevelOrder | None) -> dict[str, str]:
        told = {"level": self._verbosity.level, "started": self._verbosity.started, "replica": self._replica}
        if order is not None:
            told |= {"ordered": order.level, "until": format_time(order.until), "by": order.by}
        return told


def _wanted(body: bytes) -> LogLevelRequest:
    """Parses the body of a PUT. Raises BadRequestError."""
    try:
        if body.lstrip().startswith(b"{"):
            return msgspec.json.decode(body, type=LogLevelRequest)
        return LogLevelRequest(body.decode("ascii").strip())
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise BadRequestError('the body is a level such as debug, or {"level": "debug", "for": "15m"}') from None


def _lasts(text: str) -> timedelta:
    """Parses a duration. Raises BadRequestError."""
    if not text:
        return USUAL_LOG_LEVEL
    try:
        return parse_duration(text)
    except ValueError as error:
        raise BadRequestError(f"for: {error}, such as {format_duration(USUAL_LOG_LEVEL)}") from None
