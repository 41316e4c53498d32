"""The hub's limits: the priority level of a request at either door, and the flow in which the request counts.

level            requests                                                            flow
exempt           system:masters, health; never limited                               -
lifelines        leases, renewals, own ManagedCluster: needed to stay ready          the agent
status-reports   agents' reports of their clusters                                   the agent
sessions         the start of an agent's session                                     the agent
registrations    all requests of bootstrap credentials                               the credential and the cluster
read-only        other reads                                                         the user
logins           exchange of tokens for certificates                                 the user
mutating         other writes                                                        the user

The flow of a client without a credential is its host. Many registrations fill only their own level, and do not delay heartbeats
and renewals. Registrations, session starts and status reports begin only while the event loop keeps up with the heartbeats.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

from hub.settings import HubSettings
from machinery.apiserver.access import OPEN_PATHS, Attributes
from machinery.apiserver.http.limits import (
    REQUEST_LIMIT,
    TOO_MANY,
    WAIT_DIVISOR,
    Openings,
    Pool,
    PriorityLevel,
    Pushback,
    Rates,
    origin,
)
from machinery.apiserver.storage import Actor
from machinery.errors import TooManyRequestsError
from machinery.identity import ALL_CLUSTERS_GROUP, BOOTSTRAP_USER_PREFIX, OPERATOR_GROUP, RECOVERY_USER_PREFIX, ClusterName
from machinery.runtime.clock import Clock
from machinery.runtime.congestion import Congestion

EXEMPT, LIFELINES, REPORTS, SESSIONS = "exempt", "lifelines", "status-reports", "sessions"
REGISTRATIONS, READ_ONLY, MUTATING, LOGINS = "registrations", "read-only", "mutating", "logins"
READS = frozenset(("get", "list", "watch", "head", "options"))
TOKEN_EXCHANGE = "tokencredentialrequests"  # noqa: S105 - the name of a resource
BOOTSTRAPPERS = "system:bootstrappers:"
REGISTRATION_USERS = (BOOTSTRAP_USER_PREFIX, RECOVERY_USER_PREFIX)
LEASES = ("coordination.k8s.io", "leases")
REQUESTS = ("certificates.k8s.io", "certificatesigningrequests")
LONGEST_FLOW = 253
"""Longer flows are cut to this number of characters, because the hub keeps thousands of unvalidated flows. No valid name is
longer."""
REFUSALS, REFUSALS_AT_ONCE = 5, 100
"""Permitted refusals of callers without a valid credential from one address: per second, and as a burst."""
YIELDING = frozenset((REPORTS, SESSIONS, REGISTRATIONS))
"""Levels that get thousands of requests when a fleet joins or reconnects. These requests can wait longer than a heartbeat."""
CALL_WAIT = timedelta(seconds=3)
"""Longest wait of a new call at the gRPC door while the event loop is late. Agents wait 5 s for an answer."""
QUEUES = {LIFELINES: (10_000, 50), REPORTS: (10_000, 50), SESSIONS: (10_000, 50), REGISTRATIONS: (2_000, 2_000)}
"""For each level, the longest queue of the whole level (enough for a fleet) and of one identity. A bootstrap credential may use
the whole queue of its level, because many clusters may share the credential."""
OTHER_QUEUE = (1_000, 50)
LOGIN_SEATS = 100


class AccessLimits:
    """The request limits of this process. One instance serves both doors."""

    def __init__(self, clock: Clock, settings: HubSettings, *, write_delay: Callable[[], float] = lambda: 0.0) -> None:
        """`write_delay` returns the seconds for which the oldest waiting write of the store has waited."""
        seats = {
            LIFELINES: settings.max_lifelines_inflight,
            REPORTS: settings.max_status_reports_inflight,
            SESSIONS: settings.max_session_starts_inflight,
            REGISTRATIONS: settings.max_registrations_inflight,
            LOGINS: LOGIN_SEATS,
            READ_ONLY: settings.max_requests_inflight,
            MUTATING: settings.max_mutating_requests_inflight,
        }
        self._congestion = Congestion(write_delay)
        self._pushback = Pushback(clock)
        self.pools = {EXEMPT: Pool(PriorityLevel(EXEMPT), clock)}
        for name, count in seats.items():
            level = PriorityLevel(name, count, *QUEUES.get(name, OTHER_QUEUE), yields=name in YIELDING)
            self.pools[name] = Pool(level, clock, self._congestion)
        limit = settings.max_sessions_per_cluster
        self._sessions = Openings(limit, 0, f"this cluster has {limit} sessions open")
        self.rates = Rates(settings.identity_rate, settings.identity_burst, clock)
        self.refusals = Rates(REFUSALS, REFUSALS_AT_ONCE, clock)
        self.watches = Openings(settings.max_watches_per_identity, settings.max_watches)

    def place(self, actor: Actor, attributes: Attributes) -> tuple[Pool, str]:
        """Returns the pool of a request, and the identity for which the request counts ("": the request is not limited)."""
        level = level_of(actor, attributes)
        return self.pools[level], "" if level == EXEMPT else actor.user

    @asynccontextmanager
    async def seat(
        self, actor: Actor, attributes: Attributes, *, flow: str = "", time_left: timedelta | None = None
    ) -> AsyncIterator[None]:
        """Holds a seat for one call: one of the calls that the level permits at once.

        `flow` separates registrations with one credential; other callers cannot escape their limits by the flow they choose.
        Waits for at most a quarter of `time_left`, the time until the deadline of the call. Raises TooManyRequestsError.
        """
        pool, user = self.place(actor, attributes)
        identity = f"{user} {flow[:LONGEST_FLOW]}" if flow and pool is self.pools[REGISTRATIONS] else user
        if user:
            self.rates.check(identity)
        async with pool.seat(identity, min(time_left or REQUEST_LIMIT, REQUEST_LIMIT) / WAIT_DIVISOR):
            yield

    async def begin(self) -> None:
        """Waits while the event loop is late. Call it before any work for a new call. Raises TooManyRequestsError."""
        try:
            await self._congestion.turn(CALL_WAIT)
        except TimeoutError:
            raise TooManyRequestsError(TOO_MANY, retry_after=self._pushback.refused()) from None

    def refuse(self, address: str) -> None:
        """Counts a refusal of an unknown caller. Raises TooManyRequestsError above the rate of its address."""
        self.refusals.check(origin(address))

    def session(self, cluster: ClusterName) -> AbstractContextManager[None]:
        """Counts a session of a cluster while the block runs. Raises TooManyRequestsError at the limit per cluster."""
        return self._sessions.one(cluster)

    def snapshot(self) -> dict[str, Any]:
        sessions = self._sessions.snapshot()
        sessions["clusters"] = sessions.pop("identities")
        sums = {"rates": self.rates.snapshot(), "refusals": self.refusals.snapshot(), "watches": self.watches.snapshot()}
        levels = {name: pool.snapshot() for name, pool in self.pools.items()}
        return {**levels, **sums, "sessions per cluster": sessions, "calls that wait": len(self._congestion)}


def level_of(actor: Actor, attributes: Attributes) -> str:
    """Returns the priority level of a request by its user and attributes."""
    is_health = not attributes.resource and (
        attributes.path in OPEN_PATHS or attributes.path.startswith(("/livez/", "/readyz/", "/healthz/"))
    )
    if OPERATOR_GROUP in actor.groups or is_health:
        return EXEMPT
    if ALL_CLUSTERS_GROUP in actor.groups:
        if level := {"session": SESSIONS, "status": REPORTS}.get(attributes.subresource):
            return level
        if (attributes.group, attributes.resource) in (LEASES, REQUESTS) or attributes.resource == "managedclusters":
            return LIFELINES
    elif actor.user.startswith(REGISTRATION_USERS) or any(f"{group}:".startswith(BOOTSTRAPPERS) for group in actor.groups):
        return REGISTRATIONS
    elif attributes.resource == TOKEN_EXCHANGE and attributes.verb == "create":
        return LOGINS
    return READ_ONLY if attributes.verb in READS else MUTATING
