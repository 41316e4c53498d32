"""Which level a request has: what agents live on is apart from what storms bring."""

import pytest

from hub.access.limits import AccessLimits, Capacity, level_of
from machinery.apiserver.access import ANONYMOUS, Attributes
from machinery.apiserver.storage import Actor
from machinery.clock import ManualClock
from machinery.errors import TooManyRequestsError

ADMIN = Actor("admin", ("system:masters", "system:authenticated"))
USER = Actor("bob", ("system:authenticated",))
AGENT = Actor("system:open-cluster-management:edge:a", ("system:open-cluster-management:managed-clusters",))
TOKEN = Actor("system:bootstrap:abcdef", ("system:bootstrappers", "system:authenticated"))
CREDENTIAL = Actor("system:bootstrap:1234", ("system:bootstrappers:managedcluster",))


def asked(verb: str, what: str) -> Attributes:
    if what.startswith("/"):
        return Attributes(verb, what)
    plain, _, group = what.partition(".")
    resource, _, part = plain.partition("/")
    return Attributes(verb, f"/apis/{group}/v1/{resource}", group, "v1", resource, part, name="x")


LEVELS = {
    (ADMIN, "list managedclusters.cluster"): "exempt",
    (ADMIN, "delete managedclusters.cluster"): "exempt",
    (ANONYMOUS, "get /readyz"): "exempt",
    (ANONYMOUS, "get /livez/ping"): "exempt",
    (ANONYMOUS, "get /api"): "read-only",
    (USER, "list managedclusters.cluster"): "read-only",
    (USER, "watch managedclusters.cluster"): "read-only",
    (USER, "patch managedclusters.cluster"): "mutating",
    (USER, "update leases.coordination.k8s.io"): "mutating",
    (AGENT, "update leases.coordination.k8s.io"): "lifelines",
    (AGENT, "get leases.coordination.k8s.io"): "lifelines",
    (AGENT, "create certificatesigningrequests.certificates.k8s.io"): "lifelines",
    (AGENT, "create managedclusters.cluster"): "lifelines",
    (AGENT, "patch managedclusters/status.cluster"): "status-reports",
    (AGENT, "patch managedclusteraddons/status.addon"): "status-reports",
    (AGENT, "connect managedclusters/session.cluster"): "sessions",
    (AGENT, "create events."): "mutating",
    (AGENT, "list managedclusteraddons.addon"): "read-only",
    (CREDENTIAL, "create managedclusters.cluster"): "registrations",
    (CREDENTIAL, "create certificatesigningrequests.certificates.k8s.io"): "registrations",
    (TOKEN, "update leases.coordination.k8s.io"): "registrations",
}


def test_each_request_has_its_level() -> None:
    assert {(actor, what): level_of(actor, asked(*what.split())) for actor, what in LEVELS} == LEVELS


async def test_rates_are_limited_per_flow_and_never_for_operators() -> None:
    limits = AccessLimits(ManualClock(), Capacity(rate=1, burst=1))
    reading, joining = asked("get", "managedclusters.cluster"), asked("create", "managedclusters.cluster")
    for _ in range(5):
        async with limits.seat(ADMIN, reading):
            pass
    async with limits.seat(USER, reading), limits.seat(CREDENTIAL, joining, flow="a" * 253):
        pass
    with pytest.raises(TooManyRequestsError):
        async with limits.seat(USER, reading):
            pass
    with pytest.raises(TooManyRequestsError):  # of a flow's name only as much counts as a name may have
        async with limits.seat(CREDENTIAL, joining, flow="a" * 1_000_000):
            pass
