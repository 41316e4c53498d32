"""Owns the token infrastructure of add-ons (ServiceAccount, Role, RoleBinding) and the condition TokenInfrastructureReady.

Source: OCM's add-on manager. The objects exist while an add-on has a registration by token, and are restored when changed.
"""

from collections.abc import Callable
from datetime import timedelta

from hub.api.events import NORMAL, WARNING, EventRecord
from hub.api.managedclusteraddons import addon as rules
from hub.api.meta.change import ADDONS
from hub.controllers import ACTOR
from hub.ports import Store
from hub.registry.managedclusteraddons import tokens as addon_tokens
from machinery.meta.conditions import TRUE
from machinery.meta.objects import Document, Key
from machinery.runtime.controller import Reconciler

NAME = "addon-tokens"


def wanted(addon: Document) -> bool:
    """Whether a ManagedClusterAddOn has or needs token infrastructure."""
    return rules.wants_token(addon) or rules.has_token_condition(addon)


def wanted_of(part: Document) -> bool:
    """Whether an object is part of token infrastructure."""
    return rules.token_owner(part) is not None


class AddOnTokens(Reconciler[Key]):
    """Reconciles one add-on. `tell` records an Event without blocking."""

    def __init__(self, store: Store, tell: Callable[[EventRecord], None]) -> None:
        self._store = store
        self._tell = tell

    async def reconcile(self, key: Key) -> timedelta | None:
        news = await self._store.run(addon_tokens.settle, key, f"{ACTOR}:{NAME}")
        stored = await self._store.read(lambda tx: tx.objects.get(ADDONS, key)) if news is not None else None
        if news is not None and stored is not None:
            kind = NORMAL if news.status == TRUE else WARNING
            self._tell(EventRecord(key.namespace, stored.document, news.reason, news.message, kind))
        return None
