"""Owns the statuses of JWTAuthenticators and WebhookAuthenticators: checks their servers after each change and periodically.

The status is for display only: a login queries the server itself, on each replica.
"""

from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

from hub.access.authenticator_conditions import phase_of
from hub.api.logins import KINDS
from hub.api.meta import document as doc
from hub.api.meta.change import Kind
from hub.controllers import ACTOR
from hub.ports import Store, Transaction
from hub.registry import logins
from machinery.meta.conditions import Condition
from machinery.meta.objects import Document, Key
from machinery.runtime.controller import Reconciler

NAME = "authenticators"
AGAIN, SOON = timedelta(minutes=3), timedelta(seconds=20)
"""Intervals between checks of a ready and of an unready authenticator."""
GRACE = timedelta(seconds=1)
"""Time for a running check to end when the controllers stop, because it waits for a remote server."""

Examine = Callable[[str, Document], Awaitable[list[Condition]]]
WORDS: Mapping[Kind, str] = {kind: word for word, kind in KINDS.items()}


class AuthenticatorStatus(Reconciler[tuple[Kind, str]]):
    """Keys are kind and name."""

    def __init__(self, store: Store, examine: Examine) -> None:
        self._store = store
        self._examine = examine
        self._known: dict[tuple[Kind, str], object] = {}

    def wanted(self, kind: Kind) -> Callable[[Document], bool]:
        """Predicate: whether an authenticator is new or its generation has changed."""

        def is_news(document: Document) -> bool:
            metadata = doc.mapping(document, "metadata")
            key, mark = (kind, doc.name(document)), (metadata.get("uid"), metadata.get("generation"))
            known, self._known[key] = self._known.get(key), mark
            return known != mark

        return is_news

    async def reconcile(self, key: tuple[Kind, str]) -> timedelta | None:
        kind, name = key
        document = await self._store.read(_document, kind, name)
        if document is None:
            self._known.pop(key, None)
            return None
        found = await self._examine(WORDS[kind], document)
        phase = phase_of(found)
        seen: dict[str, Any] = {"phase": phase, "observedGeneration": doc.mapping(document, "metadata").get("generation", 1)}
        await self._store.run(logins.describe, kind, name, found, seen=seen, actor=f"{ACTOR}:{NAME}")
        return AGAIN if phase == "Ready" else SOON


def _document(tx: Transaction, kind: Kind, name: str) -> Document | None:
    stored = tx.objects.get(kind, Key("", name))
    return None if stored is None else stored.document
