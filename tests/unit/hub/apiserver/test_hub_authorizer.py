"""The door's authorizer put together: records first, then roles; what is served while no role can be read."""

import pytest

from hub.access.rights import Standing
from hub.access.rolebook import RoleBook
from hub.access.standing import Standings
from hub.apiserver.authorization import HubAuthorizer, named_actor
from hub.domain import cluster as clusters_rules
from hub.domain.certificate import Purpose
from hub.domain.change import CLUSTER_ROLE_BINDINGS, MANAGED_CLUSTERS, Key
from hub.domain.document import with_status_condition
from hub.domain.roles import Groups
from hub.ports import Transaction
from hub.services import addons, clusters, objects, roles
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


ROBOT = Actor("system:serviceaccount:edge1:metrics-agent", (*KNOWN, "system:serviceaccounts"), "u1")
ADDON = Actor(
    "metrics",
    ("system:open-cluster-management:cluster:edge1:addon:metrics", *KNOWN),
    holder=Standing(Purpose.ADDON, ClusterName("edge1"), user="metrics"),
)


def put_cluster(store: MemoryStore, *, accepted: bool, judged: bool = True) -> None:
    def write(tx: Transaction) -> None:
        old = tx.objects.get(MANAGED_CLUSTERS, Key("", "edge1"))
        document = {"metadata": {"name": "edge1"}, "spec": {"hubAcceptsClient": accepted}}
        verdict = clusters_rules.ACCEPTED if accepted else clusters_rules.DENIED
        clusters.put(tx, with_status_condition(document, verdict, tx.now) if judged else document, old, "ann")

    store.transact(write)


def bind_viewers(store: MemoryStore) -> None:
    """Everybody of these may look."""
    subjects = [{"kind": "ServiceAccount", "namespace": "edge1", "name": "metrics-agent"}]
    subjects.append({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": ADDON.groups[0]})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    document = {"metadata": {"name": "looks"}, "subjects": subjects, "roleRef": reference}
    store.transact(objects.put, CLUSTER_ROLE_BINDINGS, document, None, "ann")


async def test_a_denial_ends_what_a_clusters_service_accounts_and_addons_may(store: MemoryStore) -> None:
    """OCM 5.2: accept, then deny; here tokens and add-ons' certificates lose their rights with it too."""
    bind_viewers(store)
    put_cluster(store, accepted=True)
    for actor in (ROBOT, ADDON):
        assert (await (await authorizer(store)).authorize(actor, LIST)).allowed
    put_cluster(store, accepted=False)
    denied = await authorizer(store)
    for actor in (ROBOT, ADDON):
        assert not (await denied.authorize(actor, LIST)).allowed
    assert 'cluster "edge1" is denied' in (await denied.authorize(ROBOT, LIST)).reason
    assert (await denied.rules(ROBOT, "edge1")).rules == ()


async def test_accounts_of_a_namespace_whose_name_a_newcomer_takes_keep_their_rights(store: MemoryStore) -> None:
    bind_viewers(store)
    assert (await (await authorizer(store)).authorize(ROBOT, LIST)).allowed
    put_cluster(store, accepted=False, judged=False)
    assert (await (await authorizer(store)).authorize(ROBOT, LIST)).allowed


async def test_addons_of_a_cluster_that_is_being_deleted_can_clean_up(store: MemoryStore) -> None:
    """OCM: rights outlive what they clean up."""
    bind_viewers(store)
    put_cluster(store, accepted=True)
    store.transact(addons.put, {"metadata": {"name": "metrics", "namespace": "edge1"}}, None, "ann")
    store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, ClusterName("edge1")), "ann"))
    assert (await (await authorizer(store)).authorize(ADDON, LIST)).allowed
    agent = Actor("a", KNOWN, holder=Standing(Purpose.AGENT, ClusterName("edge1"), AgentId("a"), "a"))
    assert not (await (await authorizer(store)).authorize(agent, LIST)).allowed


def test_a_review_by_name_answers_for_the_agent() -> None:
    actor = named_actor("system:open-cluster-management:edge1:a", ("system:open-cluster-management:edge1",), "", {})
    assert actor.holder == Standing(Purpose.AGENT, ClusterName("edge1"), AgentId("a"), actor.user)
    assert named_actor("bob", (), "", {}).holder is None
