"""Which level a request has: what agents live on is apart from what storms bring."""

from dataclasses import dataclass
from datetime import timedelta

import pytest

from hub.access.limits import AccessLimits, Capacity, level_of
from machinery.apiserver.access import ANONYMOUS, Attributes
from machinery.apiserver.storage import Actor
from machinery.clock import ManualClock
from machinery.errors import TooManyRequestsError
from machinery.identity import ClusterName

ADMIN = Actor("admin", ("system:masters", "system:authenticated"))
USER = Actor("bob", ("system:authenticated",))
AGENT = Actor("system:open-cluster-management:edge:a", ("system:open-cluster-management:managed-clusters",))
TOKEN = Actor("system:bootstrap:abcdef", ("system:bootstrappers", "system:authenticated"))
CREDENTIAL = Actor("system:bootstrap:1234", ("system:bootstrappers:managedcluster",))


@dataclass(frozen=True)
class Case:
    actor: Actor
    verb: str
    what: str
    level: str


def asked(verb: str, what: str) -> Attributes:
    if what.startswith("/"):
        return Attributes(verb, what)
    plain, _, group = what.partition(".")
    resource, _, part = plain.partition("/")
    return Attributes(verb, f"/apis/{group}/v1/{resource}", group, "v1", resource, part, name="x")


CASES = [
    Case(ADMIN, "list", "managedclusters.cluster", "exempt"),
    Case(ADMIN, "delete", "managedclusters.cluster", "exempt"),
    Case(ANONYMOUS, "get", "/readyz", "exempt"),
    Case(ANONYMOUS, "get", "/livez/ping", "exempt"),
    Case(ANONYMOUS, "get", "/api", "read-only"),
    Case(USER, "list", "managedclusters.cluster", "read-only"),
    Case(USER, "watch", "managedclusters.cluster", "read-only"),
    Case(USER, "patch", "managedclusters.cluster", "mutating"),
    Case(USER, "update", "leases.coordination.k8s.io", "mutating"),
    Case(AGENT, "update", "leases.coordination.k8s.io", "lifelines"),
    Case(AGENT, "get", "leases.coordination.k8s.io", "lifelines"),
    Case(AGENT, "create", "certificatesigningrequests.certificates.k8s.io", "lifelines"),
    Case(AGENT, "create", "managedclusters.cluster", "lifelines"),
    Case(AGENT, "patch", "managedclusters/status.cluster", "status-reports"),
    Case(AGENT, "patch", "managedclusteraddons/status.addon", "status-reports"),
    Case(AGENT, "connect", "managedclusters/session.cluster", "sessions"),
    Case(AGENT, "create", "events.", "mutating"),
    Case(AGENT, "list", "managedclusteraddons.addon", "read-only"),
    Case(CREDENTIAL, "create", "managedclusters.cluster", "registrations"),
    Case(CREDENTIAL, "create", "certificatesigningrequests.certificates.k8s.io", "registrations"),
    Case(TOKEN, "update", "leases.coordination.k8s.io", "registrations"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.actor.user} {case.verb} {case.what}")
def test_each_request_has_its_level(case: Case) -> None:
    assert level_of(case.actor, asked(case.verb, case.what)) == case.level


async def test_a_storm_of_registrations_leaves_the_other_levels_alone() -> None:
    limits = AccessLimits(ManualClock(), Capacity(registrations=2, lifelines=1))
    joining = asked("create", "managedclusters.cluster")
    async with limits.seat(CREDENTIAL, joining, flow="a"), limits.seat(CREDENTIAL, joining, flow="b"):
        with pytest.raises(TooManyRequestsError):
            async with limits.seat(CREDENTIAL, joining, flow="c", has=timedelta(milliseconds=40)):
                pass
        async with limits.seat(AGENT, asked("create", "certificatesigningrequests.certificates.k8s.io"), has=timedelta()):
            pass
        async with limits.seat(ADMIN, joining, has=timedelta()):
            pass
    assert limits.snapshot()["registrations"]["taken"] == 0


async def test_operators_are_not_limited_in_their_rate() -> None:
    limits = AccessLimits(ManualClock(), Capacity(rate=1, burst=1))
    for _ in range(5):
        async with limits.seat(ADMIN, asked("get", "managedclusters.cluster")):
            pass
    async with limits.seat(USER, asked("get", "managedclusters.cluster")):
        pass
    with pytest.raises(TooManyRequestsError):
        async with limits.seat(USER, asked("get", "managedclusters.cluster")):
            pass


async def test_of_what_tells_flows_apart_no_more_is_remembered_than_a_name_may_have() -> None:
    limits = AccessLimits(ManualClock(), Capacity(rate=1, burst=1))
    joining = asked("create", "managedclusters.cluster")
    async with limits.seat(CREDENTIAL, joining, flow="a" * 253):
        pass
    with pytest.raises(TooManyRequestsError):
        async with limits.seat(CREDENTIAL, joining, flow="a" * 1_000_000):
            pass


def test_sessions_of_one_cluster_are_bounded() -> None:
    limits = AccessLimits(ManualClock(), Capacity(sessions_per_cluster=1))
    edge, far = ClusterName("edge"), ClusterName("far")
    with limits.session(edge), limits.session(far):
        with pytest.raises(TooManyRequestsError, match="has 1 sessions open"), limits.session(edge):
            pass
        assert limits.snapshot()["sessions per cluster"] == {"clusters": 2, "open": 2, "refused": 1}
    with limits.session(edge):
        pass
    assert limits.snapshot()["sessions per cluster"]["open"] == 0
