"""The door's authorizer put together: records first, then roles; what is served while no role can be read."""

import pytest

from hub.access.rights import Standing
from hub.access.rolebook import RoleBook
from hub.access.standing import Standings
from hub.apiserver.authorization import HubAuthorizer, named_actor
from hub.domain.certificate import Purpose
from hub.domain.roles import Groups
from hub.services import roles
from machinery.apiserver.access import ANONYMOUS, Attributes
from machinery.apiserver.rbac_authorizer import RbacAuthorizer
from machinery.apiserver.storage import Actor
from machinery.clock import ManualClock
from machinery.errors import UnavailableError
from machinery.identity import AgentId, ClusterName
from tests.fakes.memory_store import MemoryStore

KNOWN = ("system:authenticated",)
BOB, ROOT = Actor("bob", KNOWN), Actor("root", ("system:masters",))
LIST = Attributes("list", "/x", "cluster.open-cluster-management.io", "v1", "managedclusters")


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(ManualClock())
    store.transact(roles.reconcile, Groups())
    return store


async def authorizer(store: MemoryStore, *, blind: bool = False) -> HubAuthorizer:
    clock = ManualClock()
    book = RoleBook(store, clock)
    if not blind:
        await book.load()
    return HubAuthorizer(store, RbacAuthorizer(book), Standings(store, clock), Groups())


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/healthz", "/version"])
@pytest.mark.parametrize("actor", [ANONYMOUS, BOB, ROOT])
async def test_version_and_health_need_no_role(store: MemoryStore, path: str, actor: Actor) -> None:
    blind = await authorizer(store, blind=True)
    assert (await blind.authorize(actor, Attributes("get", path))).allowed
    with pytest.raises(UnavailableError):
        await blind.authorize(BOB, LIST)
    assert (await blind.authorize(ROOT, LIST)).allowed


async def test_discovery_is_for_whoever_is_known(store: MemoryStore) -> None:
    sighted = await authorizer(store)
    assert (await sighted.authorize(BOB, Attributes("get", "/apis/x/v1"))).allowed
    for refused in (Attributes("get", "/apis"), Attributes("get", "/readyz/ping"), Attributes("post", "/livez")):
        assert not (await sighted.authorize(ANONYMOUS, refused)).allowed


async def test_whoever_is_known_may_ask_what_he_may(store: MemoryStore) -> None:
    sighted = await authorizer(store)
    held = await sighted.rules(BOB, "default")
    assert {resource for rule in held.rules for resource in rule.resources} == {
        "selfsubjectaccessreviews",
        "selfsubjectrulesreviews",
        "selfsubjectreviews",
    }
    assert not (await sighted.authorize(BOB, LIST)).allowed


def test_a_review_by_name_answers_for_the_agent() -> None:
    actor = named_actor("system:open-cluster-management:edge1:a", ("system:open-cluster-management:edge1",), "", {})
    assert actor.holder == Standing(Purpose.AGENT, ClusterName("edge1"), AgentId("a"), actor.user)
    assert named_actor("bob", (), "", {}).holder is None
