"""Paths that serve no objects: the hub's revocation lists and its log level.

`/crl` is the index of the revocation lists. `/crl/<id>.crl` is one list in DER, `/crl/<id>.pem` the same list in PEM. The lists
are public: they need no authentication and are not audited. The database is read at most once a second.

At the path `/debug/flags/v`, Kubernetes servers change their log level. In this hub a change applies to all replicas, for a
limited time. GET returns the level. PUT with a level or `{"level": "debug", "for": "15m"}` as body sets a level. DELETE
restores the level with which each replica started. These requests need RBAC rights on this path.
"""

import asyncio
from datetime import timedelta
from http import HTTPStatus

import msgspec
import structlog
from aiohttp import web

from hub.api.hubreplicas import USUAL_LOG_LEVEL
from hub.ports import Store
from hub.ports.identities import ListSigner
from hub.registry import certificates
from hub.registry.certificates import PublishedList
from hub.registry.hubreplicas import service as orders
from machinery import pki
from machinery.apiserver.http.filters import Incoming, Inner
from machinery.apiserver.http.responses import ResponseForm, value_answer
from machinery.durations import format_duration, parse_duration
from machinery.errors import BadRequestError, ErrorSubject, MethodNotAllowedError, NotFoundError, UnavailableError
from machinery.lifecycle.process import Verbosity
from machinery.meta.timestamps import format_time
from machinery.runtime.clock import Clock

ROOT = "/crl"
REFRESH_PERIOD = 1.0
"""Seconds for which an answer is served without another read of the database."""
READ_TIMEOUT = 5.0
"""Seconds to wait for the database."""
MAX_AGE = 60.0
"""Seconds for which an answer is served while the database does not answer."""
_MEDIA = {"crl": "application/pkix-crl", "pem": "application/x-pem-file"}

log = structlog.get_logger(__name__)


class RevocationLists:
    """Request filter that serves the revocation lists (`/crl`) without authentication."""

    def __init__(self, store: Store, signer: ListSigner, clock: Clock) -> None:
        self._store = store
        self._signer = signer
        self._clock = clock
        self._known: dict[str, tuple[PublishedList, float]] = {}
        """The last list of each CA, and when it was read."""
        self._asking = asyncio.Lock()
        self._away_until = 0.0
        """After a failed read, the database is not read until this time. Otherwise each request would wait for READ_TIMEOUT."""

    async def __call__(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        path = incoming.request.path.rstrip("/")
        if path != ROOT and not path.startswith(f"{ROOT}/"):
            return await inner(incoming)
        if incoming.request.method not in ("GET", "HEAD"):
            raise MethodNotAllowedError("revocation lists are read-only: use GET")
        return await (self._index() if path == ROOT else self._one(incoming.request, path.removeprefix(f"{ROOT}/")))

    async def _index(self) -> web.Response:
        found = [await self._published(authority) for authority in self._signer.authorities]
        lists = [
            {
                "authority": each.authority,
                "number": each.number,
                "signed": format_time(each.signed_at),
                "der": f"{ROOT}/{_id(each.authority)}.crl",
                "pem": f"{ROOT}/{_id(each.authority)}.pem",
            }
            for each in found
        ]
        return web.Response(body=msgspec.json.encode({"lists": lists}), content_type="application/json")

    async def _one(self, request: web.Request, name: str) -> web.Response:
        short, _, form = name.partition(".")
        authority = next((each for each in self._signer.authorities if _id(each) == short), None)
        if authority is None or form not in _MEDIA:
            raise NotFoundError(f"there is no revocation list {name}: {ROOT} lists all", subject=ErrorSubject(name=name))
        published = await self._published(authority)
        tag = f'"{published.number}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        body = published.der if form == "crl" else pki.list_to_pem(published.der)
        return web.Response(body=body, content_type=_MEDIA[form], headers={"ETag": tag, "Cache-Control": "no-cache"})

    async def _published(self, authority: str) -> PublishedList:
        """Returns the list, up to `MAX_AGE` old if the database does not answer. Raises UnavailableError."""
        async with self._asking:
            began = self._clock.monotonic()
            _, read_at = self._known.get(authority, (None, began - MAX_AGE))
            if began - read_at >= REFRESH_PERIOD and began >= self._away_until:
                try:
                    async with asyncio.timeout(READ_TIMEOUT):
                        found = await self._store.read(certificates.current_list, self._signer, authority)
                        if found is None:
                            found = await self._store.run(certificates.sign_list, self._signer, authority)
                        self._known[authority] = found, began
                except (UnavailableError, TimeoutError) as error:
                    log.warning("revocation lists cannot be read now", error=str(error) or "no answer in time")
                    self._away_until = self._clock.monotonic() + REFRESH_PERIOD
            known = self._known.get(authority)
            if known is None or self._clock.monotonic() - known[1] >= MAX_AGE:
                raise UnavailableError("the revocation list cannot be read now", retry_after=timedelta(seconds=1))
            return known[0]


def _id(authority: str) -> str:
    """Returns the last part of a CA's name, such as `hub/0123456789abcdef`, for use in a path."""
    return authority.rpartition("/")[2]


LOG_LEVEL_PATH = "/debug/flags/v"


class LogLevelRequest(msgspec.Struct):
    level: str
    lasts: str = msgspec.field(default="", name="for")


class LogLevel:
    """Serves the log level at `LOG_LEVEL_PATH`. `verbosity`: the log level of this replica."""

    def __init__(self, store: Store, verbosity: Verbosity, replica: str) -> None:
        self._store = store
        self._verbosity = verbosity
        self._replica = replica

    async def __call__(self, incoming: Incoming) -> web.Response:
        request = incoming.request
        match request.method:
            case "GET" | "HEAD":
                order = await self._store.read(orders.current_log_level)
            case "PUT":
                level, lasts = _parse_order(await request.read())
                order = await self._store.run(orders.order_log_level, level, lasts, incoming.actor.user)
                self._verbosity.order(order.level)
            case "DELETE":
                await self._store.run(orders.clear_log_level)
                self._verbosity.order(None)
                order = None
            case _:
                raise MethodNotAllowedError("use GET (returns the level), PUT (sets a level) or DELETE (ends the order)")
        document = {"level": self._verbosity.level, "started": self._verbosity.started, "replica": self._replica}
        if order is not None:
            document |= {"ordered": order.level, "until": format_time(order.until), "by": order.by}
        return await value_answer(request, document, ResponseForm())


def _parse_order(body: bytes) -> tuple[str, timedelta]:
    """Parses the body of a PUT: the level, and the time for which it applies. Raises BadRequestError."""
    try:
        if body.lstrip().startswith(b"{"):
            wanted = msgspec.json.decode(body, type=LogLevelRequest)
        else:
            wanted = LogLevelRequest(body.decode("ascii").strip())
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise BadRequestError('the body is a level such as debug, or {"level": "debug", "for": "15m"}') from None
    try:
        return wanted.level, parse_duration(wanted.lasts) if wanted.lasts else USUAL_LOG_LEVEL
    except ValueError as error:
        raise BadRequestError(f"for: {error}, such as {format_duration(USUAL_LOG_LEVEL)}") from None
