"""The console: a browser application at /console/ that uses the HTTPS door like any other client (ADR 0009).

Its files are public, because they contain no data. `hubctl console` adds the header `MARK` to the console's requests. With
--console=read-only the hub refuses requests with this header that could write.
"""

from http import HTTPStatus
from importlib import resources

import msgspec
from aiohttp import web

from hub.composition.core import HubCore
from hub.extensions.console.files import ConsoleFile, read_files
from hub.extensions.settings import ConsoleSettings
from machinery.apiserver.access import Attributes
from machinery.apiserver.http.filters import Incoming, Inner
from machinery.apiserver.http.responses import JSON, etag_matches, no_such_page, takes_gzip
from machinery.errors import ErrorSubject, ForbiddenError, MethodNotAllowedError
from machinery.product import version

ROOT = "/console"
INDEX, CONFIG = "index.html", "config.json"
MARK = "Muster-Console"
READS = frozenset(("GET", "HEAD"))
REVIEWS = frozenset(
    (
        ("authentication.k8s.io", "selfsubjectreviews"),
        ("authorization.k8s.io", "selfsubjectaccessreviews"),
        ("authorization.k8s.io", "selfsubjectrulesreviews"),
    )
)
"""Groups and resources that a client may create without a change of the hub's data."""
POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types muster-console"
)
"""The only Trusted Types policy, `muster-console`, makes the URL of the SharedWorker."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


async def install(core: HubCore) -> None:
    """Serve the console, if `console` is not off."""
    settings = core.context.settings
    if not isinstance(settings, ConsoleSettings) or settings.console == "off":
        return
    config = {"mode": settings.console, "version": version(), "groupSuffix": settings.api_group_suffix}
    files = read_files(resources.files(__name__) / "static")
    files[CONFIG] = ConsoleFile.of(msgspec.json.encode(config), JSON)
    core.public_filters.append(Console(files, read_only=settings.console == "read-only"))


class Console:
    """Filter before authentication. It answers the console's paths, and passes all other requests on."""

    def __init__(self, files: dict[str, ConsoleFile], *, read_only: bool) -> None:
        self._files = files
        self._read_only = read_only

    async def __call__(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        request = incoming.request
        path, reads = request.path, request.method in READS
        if path == ROOT or (path == "/" and reads and "text/html" in request.headers.get("Accept", "")):
            return web.Response(status=HTTPStatus.FOUND, headers={"Location": f"{ROOT}/", **HEADERS})
        if path.startswith(f"{ROOT}/"):
            if not reads:
                raise MethodNotAllowedError("the files of the console are only read")
            return self._file(request, path.removeprefix(f"{ROOT}/") or INDEX)
        if self._read_only and MARK in request.headers and not reads and not _is_review(incoming.attributes):
            raise ForbiddenError("the console of this hub is read-only (--console=read-only)", subject=ErrorSubject())
        return await inner(incoming)

    def _file(self, request: web.Request, name: str) -> web.Response:
        file = self._files.get(name)
        if file is None:
            return no_such_page()
        headers = {**HEADERS, "ETag": file.etag, "Vary": "Accept-Encoding"}
        if etag_matches(request.headers.get("If-None-Match", ""), file.etag):
            return web.Response(status=HTTPStatus.NOT_MODIFIED, headers=headers)
        body = file.content
        if takes_gzip(request.headers.get("Accept-Encoding", "")):
            body, headers["Content-Encoding"] = file.compressed, "gzip"
        return web.Response(body=body, headers={**headers, "Content-Type": file.media})


def _is_review(asked: Attributes) -> bool:
    """Whether the request is a review of the caller's own rights or identity."""
    return asked.verb == "create" and not asked.name and (asked.group, asked.resource) in REVIEWS
