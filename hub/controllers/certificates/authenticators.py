"""Owns the statuses of JWTAuthenticators and WebhookAuthenticators: checks their servers after each change and periodically.

The status is for display only. No login reads it: the replica that handles the login queries the server.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from hub.api.logins import JWT, KINDS, authorities_of
from hub.api.meta import document as doc
from hub.api.meta.change import Kind
from hub.controllers import ACTOR
from hub.controllers.builder import ChangeFilter, ControllerBuilder, generation_of
from hub.ports import Store
from hub.registry import authenticators as logins
from machinery.apiserver.authn.issuer_keys import HttpsDocuments, JsonDocuments, check_https, discover, fetch_keys
from machinery.errors import MusterError
from machinery.meta.conditions import FALSE, TRUE, UNKNOWN, Condition
from machinery.meta.objects import Document, Key
from machinery.runtime.controller import Reconciler

NAME = "authenticators"
READY_CHECK_INTERVAL, UNREADY_CHECK_INTERVAL = timedelta(minutes=3), timedelta(seconds=20)
"""Intervals between checks of a ready and of an unready authenticator."""
GRACE = timedelta(seconds=1)
"""When the controllers stop, a running check is cancelled after this time, because a remote server may be slow."""
WORKERS = 4
NOT_EXAMINED = "Not checked: an earlier check failed."

Connect = Callable[[bytes], JsonDocuments]
"""Returns a client for servers that these CA certificates verify (PEM; b"": the system's CAs). Raises InvalidError."""
Examine = Callable[[str, Document], Awaitable[list[Condition]]]
WORDS: Mapping[Kind, str] = {kind: word for word, kind in KINDS.items()}


class AuthenticatorStatus(Reconciler[tuple[Kind, str]]):
    """Reconciles the status of one authenticator. Keys are kind and name."""

    def __init__(self, store: Store, examine: Examine) -> None:
        self._store = store
        self._examine = examine
        self.wanted: Mapping[Kind, ChangeFilter] = {kind: ChangeFilter(generation_of) for kind in WORDS}

    async def reconcile(self, key: tuple[Kind, str]) -> timedelta | None:
        kind, name = key
        stored = await self._store.read(lambda tx: tx.objects.get(kind, Key("", name)))
        if stored is None:
            self.wanted[kind].known.pop(name, None)
            return None
        document = stored.document
        found = await self._examine(WORDS[kind], document)
        phase = "Ready" if all(each.status == TRUE for each in found) else "Error"
        seen: dict[str, Any] = {"phase": phase, "observedGeneration": doc.mapping(document, "metadata").get("generation", 1)}
        await self._store.run(logins.write_status, kind, name, found, seen=seen, actor=f"{ACTOR}:{NAME}")
        return READY_CHECK_INTERVAL if phase == "Ready" else UNREADY_CHECK_INTERVAL


async def examine(kind: str, document: Document, connect: Connect) -> list[Condition]:
    """Returns the conditions of a JWTAuthenticator or a WebhookAuthenticator, found by connecting to its issuer or endpoint.

    The condition types are those of Pinniped. After a failed check, the conditions of the later checks are
    Unknown, and Ready is False. `connect`: see Connect.
    """
    spec, server = doc.mapping(document, "spec"), _Server(document, connect)
    named = doc.mapping(document, "spec", "tls").get("certificateAuthorityData")
    trusted = "The CAs can be read." if named else "No CA is set: the CAs of the hub's system are used."
    checks: list[tuple[str, str, str, Callable[[], Awaitable[None]]]] = [
        ("TLSConfigurationValid", "InvalidTLSConfig", trusted, server.load)
    ]
    if kind == JWT:
        server.address, server.name = str(spec.get("issuer") or ""), "the issuer"
        checks += [
            ("IssuerURLValid", "InvalidIssuerURL", "The issuer is an https:// address.", server.check),
            ("DiscoveryURLValid", "InvalidDiscovery", "The issuer was discovered, and names its keys.", server.discover),
            ("JWKSFetchValid", "InvalidCouldNotFetchJWKS", "The issuer's keys were fetched.", server.fetch_keys),
        ]
    else:
        server.address, server.name = str(spec.get("endpoint") or ""), "the endpoint"
        checks += [
            ("EndpointURLValid", "InvalidEndpointURL", "The endpoint is an https:// address.", server.check),
            ("WebhookConnectionValid", "UnableToDialServer", "The endpoint was reached over TLS.", server.reach),
        ]
    found, failed = list[Condition](), False
    for type_, failure, success, check in checks:
        if failed:
            found.append(Condition(type_, UNKNOWN, "UnableToValidate", NOT_EXAMINED))
            continue
        try:
            await check()
            found.append(Condition(type_, TRUE, "Success", success))
        except MusterError as error:
            found.append(Condition(type_, FALSE, failure, error.message))
            failed = True
    if failed:
        return [*found, Condition("Ready", FALSE, "NotReady", "The authenticator is not ready: see the other conditions.")]
    return [*found, Condition("Ready", TRUE, "Success", "The authenticator is ready.")]


class _Server:
    """The server of an authenticator, verified with the CAs of its spec. Each check raises MusterError."""

    address = name = ""

    def __init__(self, document: Document, connect: Connect) -> None:
        self._document = document
        self._connect = connect

    async def load(self) -> None:
        self._documents: JsonDocuments = self._connect(authorities_of(self._document))

    async def check(self) -> None:
        check_https(self.name, self.address)

    async def discover(self) -> None:
        self._keys_url, _configuration = await discover(self.address, self._documents)

    async def fetch_keys(self) -> None:
        await fetch_keys(self._keys_url, self._documents)

    async def reach(self) -> None:
        await self._documents.reach(self.address)


def register(builder: ControllerBuilder) -> None:
    reconciler = AuthenticatorStatus(
        builder.store, lambda kind, document: examine(kind, document, HttpsDocuments.with_authorities)
    )
    controller = builder.add(NAME, reconciler, workers=WORKERS, grace=GRACE)

    def enqueue(kind: Kind, key: Key) -> None:
        controller.enqueue((kind, key.name))

    for kind in WORDS:
        builder.watch(kind, partial(enqueue, kind), reconciler.wanted[kind])
