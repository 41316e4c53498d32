"""The hub's revocation lists: `/crl` is the index, `/crl/<id>.crl` one list in DER, `/crl/<id>.pem` in PEM.

They are public: without authentication and audit. The database is read at most once a second, whatever the load.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from http import HTTPStatus

import msgspec
import structlog
from aiohttp import web

from hub.ports import ListSigner, Store
from hub.registry.certificates import revocation_lists
from hub.registry.certificates.revocation_lists import Published
from machinery import pki
from machinery.apiserver.http.filters import Incoming, Inner
from machinery.errors import ErrorSubject, MethodNotAllowedError, NotFoundError, UnavailableError
from machinery.meta.timestamps import format_time
from machinery.runtime.clock import Clock

ROOT = "/crl"
FRESH = 1.0
"""Seconds for which an answer is served without a read."""
PATIENCE = 5.0
"""Seconds that the database may take."""
KEPT = 60.0
"""Seconds for which an answer is served while the database does not answer."""
_MEDIA = {"crl": "application/pkix-crl", "pem": "application/x-pem-file"}

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Known:
    published: Published
    read_at: float


class RevocationLists:
    """Filter before authentication; it answers its own paths and passes all others on."""

    def __init__(self, store: Store, signer: ListSigner, clock: Clock) -> None:
        self._store = store
        self._signer = signer
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._asking = asyncio.Lock()
        self._away_until = 0.0
        """Until when the database is not read after a failure; otherwise each waiting request would wait as long."""

    async def __call__(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        path = incoming.request.path.rstrip("/")
        if path != ROOT and not path.startswith(f"{ROOT}/"):
            return await inner(incoming)
        if incoming.request.method not in ("GET", "HEAD"):
            raise MethodNotAllowedError("revocation lists are only read")
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
            raise NotFoundError(f"there is no revocation list {name}: {ROOT} names them", subject=ErrorSubject(name=name))
        published = await self._published(authority)
        tag = f'"{published.number}"'
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": tag})
        body = published.der if form == "crl" else pki.list_to_pem(published.der)
        return web.Response(body=body, content_type=_MEDIA[form], headers={"ETag": tag, "Cache-Control": "no-cache"})

    async def _published(self, authority: str) -> Published:
        """Returns the list; while the database does not answer, the last one for `KEPT`. Raises UnavailableError."""
        async with self._asking:
            known, now = self._known.get(authority), self._clock.monotonic()
            is_fresh = known is not None and now - known.read_at < FRESH
            if not is_fresh and now >= self._away_until:
                known = await self._looked(authority) or known
            if known is None or self._clock.monotonic() - known.read_at >= KEPT:
                raise UnavailableError("the revocation list cannot be read now", retry_after=timedelta(seconds=1))
            return known.published

    async def _looked(self, authority: str) -> _Known | None:
        """Reads the list; None: the database does not answer."""
        began = self._clock.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                found = self._known[authority] = _Known(await self._read(authority), began)
        except (UnavailableError, TimeoutError) as error:
            log.warning("revocation lists cannot be read now", error=str(error) or "no answer in time")
            self._away_until = self._clock.monotonic() + FRESH
            return None
        return found

    async def _read(self, authority: str) -> Published:
        found = await self._store.read(revocation_lists.standing, self._signer, authority)
        return await self._store.run(revocation_lists.sign, self._signer, authority) if found is None else found


def _id(authority: str) -> str:
    """Returns the part of `hub/0123456789abcdef` that is used in a path."""
    return authority.rpartition("/")[2]
