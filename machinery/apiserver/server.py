"""A Kubernetes-style API server: groups of resources over a storage, as an aiohttp application."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from aiohttp import web

from machinery.apiserver.access import Authenticator, Authorizer
from machinery.apiserver.health import HealthCheck
from machinery.apiserver.resource import Group
from machinery.apiserver.storage import Storage
from machinery.clock import Clock

NamespaceLookup = Callable[[str], Awaitable[bool]]
"""Whether objects may be created in a namespace."""

BODY_LIMIT = 3 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a request and of a watch."""

    request: timedelta = timedelta(seconds=60)
    watch: timedelta = timedelta(seconds=1800)
    bookmark: timedelta = timedelta(seconds=30)
    body: int = BODY_LIMIT


class ApiServer:
    """The parts of an API server, introduced to one another. `application()` gives what `serve` listens with.

    `namespaces`: by default the Namespace objects, if the server has that resource; otherwise every namespace exists.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        storage: Storage,
        *,
        authenticator: Authenticator,
        authorizer: Authorizer,
        clock: Clock,
        version: Mapping[str, Any],
        checks: Iterable[HealthCheck] = (),
        namespaces: NamespaceLookup | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._groups = tuple(groups)
        self._storage = storage
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._clock = clock
        self._version = dict(version)
        self._checks = tuple(checks)
        self._namespaces = namespaces
        self._limits = limits or Limits()

    def application(self) -> web.Application:
        """A new application over these parts."""
        return web.Application(client_max_size=self._limits.body)

    def stop_watches(self) -> None:
        """Ends every open watch now, and refuses none later: for the drain before the listener's clean-up."""
