"""The console: a browser application at /console/ that uses the HTTPS door like any other client (ADR 0009).

Its files are public, because they contain no data. `hubctl console` adds the header `MARK` to the console's requests. Users can
also sign in at the console's own listener. With --console=read-only, the hub refuses requests of the console that could write.
"""

import ssl
from functools import partial
from http import HTTPStatus
from importlib import resources
from ipaddress import ip_network

import msgspec
from aiohttp import web

from hub.api.clusterroles import ApiGroups
from hub.composition.core import HubCore
from hub.extensions.console.files import HEADERS, ROOT, ConsoleFile, read_files
from hub.extensions.console.listener import ConsoleCertificate, ConsoleDoor, is_console
from hub.extensions.console.sessions import SessionAuthenticator
from hub.extensions.console.sign_in import CALLBACK, ClientTerms, OidcClient, SignIn
from hub.extensions.settings import Settings
from hub.grpc_door.session.drain import Cordon
from hub.https_door.auditing import Auditing
from hub.https_door.server import HttpsServer
from hub.settings.fields import Address
from machinery.apiserver.access import Attributes
from machinery.apiserver.authn.chain import TokenChecks
from machinery.apiserver.http.connections import ConnectionBounds
from machinery.apiserver.http.filters import Draining, Incoming, Inner, RefusalLimit
from machinery.apiserver.http.limits import Rates
from machinery.apiserver.http.responses import JSON, etag_matches, no_such_page, takes_gzip
from machinery.errors import ErrorSubject, ForbiddenError, MethodNotAllowedError
from machinery.product import version

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
"""Groups and resources that a read-only console may create, because they change no data of the hub."""


async def install(core: HubCore) -> None:
    """Serve the console if it is not off, and its listener if it has a certificate. Raises InvalidError, UnavailableError."""
    settings = core.context.settings
    if not isinstance(settings, Settings) or settings.console == "off":
        return
    config = {"mode": settings.console, "version": version(), "groupSuffix": settings.api_group_suffix}
    files = read_files(resources.files(__name__) / "static")
    files[CONFIG] = ConsoleFile.of(msgspec.json.encode(config), JSON)
    files_of_listener = {**files, CONFIG: ConsoleFile.of(msgspec.json.encode({**config, "signIn": True}), JSON)}
    if settings.console_cert_file is not None:
        core.public_filters.append(_open_listener(core, settings))
    core.public_filters.append(Console(files, files_of_listener, read_only=settings.console == "read-only"))


def _open_listener(core: HubCore, settings: Settings) -> SignIn:
    context, access, store = core.context, core.access, core.resources.store
    clock, url, chain, key = context.clock, settings.console_url, settings.console_cert_file, settings.console_key_file
    assert url is not None and chain is not None and key is not None and settings.console_authenticator  # noqa: S101, PT018 - the settings check it
    certificate = ConsoleCertificate(chain, key, url, clock)
    context.add_task("console certificate", certificate.run)
    sessions = SessionAuthenticator(store, url, TokenChecks(access.limits.refusals, clock))
    core.authenticators.append(sessions)
    core.more_doors.append(partial(_add_door, core, settings.console_listen, certificate.context))
    terms = ClientTerms(
        settings.console_authenticator, url + CALLBACK, settings.console_scopes, settings.console_client_secret_file
    )
    audit = Auditing(access.auditor), RefusalLimit(access.limits.refusals, clock)
    rates = Rates(settings.login_rate, settings.login_burst, clock)
    client, group = OidcClient(store, terms, clock), ApiGroups(settings.api_group_suffix).login
    return SignIn(client, store, sessions, audit=audit, rates=rates, group=group)


def _add_door(
    core: HubCore, address: Address, tls: ssl.SSLContext, _cordon: Cordon, https: HttpsServer, draining: Draining
) -> None:
    settings = core.context.settings
    proxies = tuple(map(ip_network, settings.https_proxies))
    bounds = ConnectionBounds(each=settings.max_connections_per_address, proxies=proxies)
    core.context.server.add_door(ConsoleDoor(https, draining, address.host, address.port, tls, bounds=bounds))


class Console:
    """Filter before authentication. It serves the console's files, and refuses the console's writes if `read_only`."""

    def __init__(self, files: dict[str, ConsoleFile], files_of_listener: dict[str, ConsoleFile], *, read_only: bool) -> None:
        self._files = files
        self._files_of_listener = files_of_listener
        self._read_only = read_only

    async def __call__(self, incoming: Incoming, inner: Inner) -> web.StreamResponse:
        request = incoming.request
        path, reads = request.path, request.method in READS
        if path == ROOT or (path == "/" and reads and "text/html" in request.headers.get("Accept", "")):
            return web.Response(status=HTTPStatus.FOUND, headers={"Location": f"{ROOT}/", **HEADERS})
        if path.startswith(f"{ROOT}/"):
            if not reads:
                raise MethodNotAllowedError("the files of the console are read-only: use GET")
            return self._file(request, path.removeprefix(f"{ROOT}/") or INDEX)
        marked = MARK in request.headers or is_console(request)
        if self._read_only and marked and not reads and not _is_review(incoming.attributes):
            raise ForbiddenError("the console of this hub is read-only (--console=read-only)", subject=ErrorSubject())
        return await inner(incoming)

    def _file(self, request: web.Request, name: str) -> web.Response:
        file = (self._files_of_listener if is_console(request) else self._files).get(name)
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
