"""The hub's limits: the priority level of a request at either door, and the flow that it counts for.

level            requests                                                            flow
exempt           system:masters, health; never limited                               -
lifelines        leases, and what agents need to stay: renewals, their cluster       the agent
status-reports   agents' reports of their clusters                                   the agent
sessions         the start of an agent's session                                     the agent
registrations    all requests of bootstrap credentials                               the credential and the cluster
read-only        other reads                                                         the user
logins           exchange of tokens for certificates                                 the user
mutating         other writes                                                        the user

A client without a credential counts by its host. So a registration storm fills only its own level, and heartbeats and renewals
continue. Registrations, session starts and status reports begin only while the event loop keeps up with the heartbeats.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from machinery.apiserver.access import OPEN_PATHS, Attributes
from machinery.apiserver.http.limits import REQUEST_LIMIT, WAIT_DIVISOR, Openings, Pool, PriorityLevel, Rates, origin
from machinery.apiserver.storage import Actor
from machinery.identity import ALL_CLUSTERS_GROUP, BOOTSTRAP_USER_PREFIX, OPERATOR_GROUP, RECOVERY_USER_PREFIX, ClusterName
from machinery.runtime.clock import Clock
from machinery.runtime.congestion import Congestion

EXEMPT, LIFELINES, REPORTS, SESSIONS = "exempt", "lifelines", "status-reports", "sessions"
REGISTRATIONS, READ_ONLY, MUTATING, LOGINS = "registrations", "read-only", "mutating", "logins"
READS = frozenset(("get", "list", "watch", "head", "options"))
TOKEN_EXCHANGE = "tokencredentialrequests"  # noqa: S105 - the name of a resource
BOOTSTRAPPERS = "system:bootstrappers:"
NEWCOMERS = (BOOTSTRAP_USER_PREFIX, RECOVERY_USER_PREFIX)
LEASES = ("coordination.k8s.io", "leases")
REQUESTS = ("certificates.k8s.io", "certificatesigningrequests")
LONGEST_FLOW = 253
"""Characters of a flow that count. Flows are kept by the thousand and are not validated yet; no valid name is longer."""
REFUSALS, REFUSALS_AT_ONCE = 5, 100
"""Refusals of one address without a valid credential: per second, and as a burst."""
YIELDING = frozenset((REPORTS, SESSIONS, REGISTRATIONS))
"""Levels whose requests come by the thousand when a fleet joins or returns, and can wait longer than a heartbeat."""
QUEUES = {LIFELINES: (10_000, 50), REPORTS: (10_000, 50), SESSIONS: (10_000, 50), REGISTRATIONS: (2_000, 2_000)}
"""Queue length of a level, and of one identity in it, for whole fleets that come at once. Clusters may share a credential."""
OTHER_QUEUE = (1_000, 50)


@dataclass(frozen=True, slots=True)
class LimitConfig:
    """The configured limits; 0 means no limit."""

    read_only: int = 400
    mutating: int = 200
    lifelines: int = 100
    registrations: int = 100
    sessions: int = 100
    reports: int = 100
    logins: int = 100
    sessions_per_cluster: int = 10
    watches: int = 100_000
    watches_each: int = 500
    rate: float = 200
    burst: int = 1_000

    def levels(self) -> tuple[PriorityLevel, ...]:
        seats = {
            LIFELINES: self.lifelines,
            REPORTS: self.reports,
            SESSIONS: self.sessions,
            REGISTRATIONS: self.registrations,
            LOGINS: self.logins,
            READ_ONLY: self.read_only,
            MUTATING: self.mutating,
        }
        others = (
            PriorityLevel(name, count, *QUEUES.get(name, OTHER_QUEUE), yields=name in YIELDING) for name, count in seats.items()
        )
        return (PriorityLevel(EXEMPT), *others)


class AccessLimits:
    """The request limits of this process. One instance serves both doors."""

    def __init__(self, clock: Clock, capacity: LimitConfig | None = None) -> None:
        capacity = capacity or LimitConfig()
        congestion = Congestion()
        self.pools = {level.name: Pool(level, clock, congestion) for level in capacity.levels()}
        most = capacity.sessions_per_cluster
        self._sessions = Openings(most, 0, f"this cluster has {most} sessions open")
        self.rates = Rates(capacity.rate, capacity.burst, clock)
        self.refusals = Rates(REFUSALS, REFUSALS_AT_ONCE, clock)
        self.watches = Openings(capacity.watches_each, capacity.watches)

    def place(self, actor: Actor, asked: Attributes) -> tuple[Pool, str]:
        """Returns the pool of a request and the identity that it counts for ("" if it is not limited)."""
        level = level_of(actor, asked)
        return self.pools[level], "" if level == EXEMPT else actor.user

    @asynccontextmanager
    async def seat(
        self, actor: Actor, asked: Attributes, *, flow: str = "", has: timedelta | None = None
    ) -> AsyncIterator[None]:
        """Holds a seat for one call. `flow` separates requests of one identity for different clusters.

        It waits for at most a quarter of `has`, the time that is left to the call. Raises TooManyRequestsError.
        """
        pool, user = self.place(actor, asked)
        identity = f"{user} {flow[:LONGEST_FLOW]}" if flow else user
        if user:
            self.rates.check(identity)
        async with pool.seat(identity, min(has or REQUEST_LIMIT, REQUEST_LIMIT) / WAIT_DIVISOR):
            yield

    def refuse(self, address: str) -> None:
        """Counts a refusal of an unknown caller. Raises TooManyRequestsError above the rate of its address."""
        self.refusals.check(origin(address))

    def session(self, cluster: ClusterName) -> AbstractContextManager[None]:
        """Counts a session of a cluster while the block runs. Raises TooManyRequestsError at the limit per cluster."""
        return self._sessions.one(cluster)

    def snapshot(self) -> dict[str, Any]:
        """Returns the counters for the debug socket."""
        sessions = self._sessions.snapshot()
        sessions["clusters"] = sessions.pop("identities")
        sums = {"rates": self.rates.snapshot(), "refusals": self.refusals.snapshot(), "watches": self.watches.snapshot()}
        levels = {name: pool.snapshot() for name, pool in self.pools.items()}
        return {**levels, **sums, "sessions per cluster": sessions}


def level_of(actor: Actor, asked: Attributes) -> str:
    """Returns the priority level of a request by its user and attributes."""
    is_health = not asked.resource and (asked.path in OPEN_PATHS or asked.path.startswith(("/livez/", "/readyz/", "/healthz/")))
    if OPERATOR_GROUP in actor.groups or is_health:
        return EXEMPT
    if ALL_CLUSTERS_GROUP in actor.groups:
        if level := {"session": SESSIONS, "status": REPORTS}.get(asked.subresource):
            return level
        if (asked.group, asked.resource) in (LEASES, REQUESTS) or asked.resource == "managedclusters":
            return LIFELINES
    elif actor.user.startswith(NEWCOMERS) or any(f"{group}:".startswith(BOOTSTRAPPERS) for group in actor.groups):
        return REGISTRATIONS
    elif asked.resource == TOKEN_EXCHANGE and asked.verb == "create":
        return LOGINS
    return READ_ONLY if asked.verb in READS else MUTATING
