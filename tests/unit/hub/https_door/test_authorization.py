"""What the HTTPS door allows: records first, then roles; and what a write needs beside its own permission."""

from collections.abc import Mapping
from typing import Any

import pytest

from hub.access.cluster_acceptance import ClusterAcceptanceCache
from hub.access.rbac_cache import RBACCache
from hub.access.rights import CallerStanding
from hub.api.certificates import Purpose
from hub.api.clusterroles import Groups
from hub.api.managedclusters import cluster as clusters_rules
from hub.api.managedclusters.cluster import CLUSTER_UID
from hub.api.managedclusters.duplicates import GIVEN_TO
from hub.api.managedclustersets import LABEL
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_ROLE_BINDINGS, MANAGED_CLUSTERS
from hub.api.meta.document import with_status_condition
from hub.https_door.callers.authorization import HubAuthorizer
from hub.https_door.storage.admission import HubAdmission
from hub.ports import Transaction
from hub.registry import clusterroles
from hub.registry.generic import objects
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.apiserver.access import ANONYMOUS, Attributes, Decision
from machinery.apiserver.authz.rbac import RbacAuthorizer
from machinery.apiserver.storage import Actor, GroupResource
from machinery.apiserver.storages.layers import Admission
from machinery.errors import ForbiddenError, UnavailableError
from machinery.identity import AgentId, ClusterName
from machinery.meta.objects import Key
from machinery.runtime.clock import ManualClock
from tests.checks import refusal
from tests.fakes.inline_store import InlineStore

KNOWN = ("system:authenticated",)
BOB, ROOT = Actor("bob", KNOWN), Actor("root", ("system:masters",))
LIST = Attributes("list", "/x", "cluster.open-cluster-management.io", "v1", "managedclusters")


@pytest.fixture
def store() -> InlineStore:
    store = InlineStore(ManualClock())
    store.transact(clusterroles.reconcile, Groups())
    return store


async def authorizer(store: InlineStore, *, blind: bool = False) -> HubAuthorizer:
    clock = ManualClock()
    book = RBACCache(store, clock)
    if not blind:
        await book.load()
    return HubAuthorizer(store, RbacAuthorizer(book), ClusterAcceptanceCache(store, clock), Groups())


async def test_version_health_and_own_reviews_need_no_role(store: InlineStore) -> None:
    blind, sighted = await authorizer(store, blind=True), await authorizer(store)
    for path in ("/livez", "/readyz", "/healthz", "/version"):
        for actor in (ANONYMOUS, BOB, ROOT):
            assert (await blind.authorize(actor, Attributes("get", path))).allowed, (path, actor)
    with pytest.raises(UnavailableError):
        await blind.authorize(BOB, LIST)
    assert (await blind.authorize(ROOT, LIST)).allowed
    assert (await sighted.authorize(BOB, Attributes("get", "/apis/x/v1"))).allowed
    for refused in (Attributes("get", "/apis"), Attributes("get", "/readyz/ping"), Attributes("post", "/livez")):
        assert not (await sighted.authorize(ANONYMOUS, refused)).allowed
    held = {resource for rule in (await sighted.rules(BOB, "default")).rules for resource in rule.resources}
    assert held == {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}
    assert not (await sighted.authorize(BOB, LIST)).allowed


ROBOT = Actor("system:serviceaccount:edge1:metrics-agent", (*KNOWN, "system:serviceaccounts"), "u1")
ADDON = Actor(
    "metrics",
    ("system:open-cluster-management:cluster:edge1:addon:metrics", *KNOWN),
    holder=CallerStanding(Purpose.ADDON, ClusterName("edge1"), user="metrics"),
)


def put_cluster(store: InlineStore, *, accepted: bool, judged: bool = True) -> None:
    def write(tx: Transaction) -> None:
        old = tx.objects.get(MANAGED_CLUSTERS, Key("", "edge1"))
        document = {"metadata": {"name": "edge1"}, "spec": {"hubAcceptsClient": accepted}}
        verdict = clusters_rules.ACCEPTED if accepted else clusters_rules.DENIED
        clusters.put(tx, with_status_condition(document, verdict, tx.now) if judged else document, old, "ann")

    store.transact(write)


def bind_viewers(store: InlineStore) -> None:
    subjects = [{"kind": "ServiceAccount", "namespace": "edge1", "name": "metrics-agent"}]
    subjects.append({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": ADDON.groups[0]})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    document = {"metadata": {"name": "looks"}, "subjects": subjects, "roleRef": reference}
    store.transact(objects.put, CLUSTER_ROLE_BINDINGS, document, None, "ann")


async def test_a_denial_ends_what_a_clusters_service_accounts_and_addons_may(store: InlineStore) -> None:
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


async def test_accounts_of_a_namespace_whose_name_a_newcomer_takes_keep_their_rights(store: InlineStore) -> None:
    bind_viewers(store)
    assert (await (await authorizer(store)).authorize(ROBOT, LIST)).allowed
    put_cluster(store, accepted=False, judged=False)
    assert (await (await authorizer(store)).authorize(ROBOT, LIST)).allowed


async def test_addons_of_a_cluster_that_is_being_deleted_can_clean_up(store: InlineStore) -> None:
    """OCM: rights outlive what they clean up."""
    bind_viewers(store)
    put_cluster(store, accepted=True)
    store.transact(addons.put, {"metadata": {"name": "metrics", "namespace": "edge1"}}, None, "ann")
    store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, ClusterName("edge1")), "ann"))
    assert (await (await authorizer(store)).authorize(ADDON, LIST)).allowed
    agent = Actor("a", KNOWN, holder=CallerStanding(Purpose.AGENT, ClusterName("edge1"), AgentId("a"), "a"))
    assert not (await (await authorizer(store)).authorize(agent, LIST)).allowed


CLUSTERS = GroupResource("cluster.open-cluster-management.io", "managedclusters")
BINDINGS = GroupResource("cluster.open-cluster-management.io", "managedclustersetbindings")
REQUESTS = GroupResource("certificates.k8s.io", "certificatesigningrequests")
ACCEPT = "update managedclusters/accept.register.open-cluster-management.io edge1"
RULES = GroupResource("hub.open-cluster-management.io", "approvalrules")
SIGNER = "kubernetes.io/kube-apiserver-client"


def admitted(
    resource: GroupResource,
    new: Mapping[str, Any],
    old: Mapping[str, Any] | None = None,
    actor: Actor = BOB,
    *,
    may: tuple[str, ...] = (),
) -> None:
    """Asks the admission, for somebody who may do just this."""

    def decide(_actor: Actor, asked: Attributes) -> Decision:
        part = f"/{asked.subresource}" if asked.subresource else ""
        return Decision(f"{asked.verb} {asked.resource}{part}.{asked.group} {asked.name}" in may)

    name = new.get("metadata", {}).get("name", "edge1")
    HubAdmission(decide, Groups())(Admission(resource, Key("", name), new, old, actor))


def cluster(*, accepts: bool | None = None, cluster_set: str = "") -> dict[str, Any]:
    metadata = {"name": "edge1", "labels": {LABEL: cluster_set} if cluster_set else {}}
    return {"metadata": metadata, "spec": {} if accepts is None else {"hubAcceptsClient": accepts}}


def renamed(uid: str) -> dict[str, Any]:
    return doc.with_annotations(cluster(), {CLUSTER_UID: uid} if uid else {})


def test_accepting_denying_and_replacing_a_cluster_need_the_permission_to_accept() -> None:
    field, name = "update the HubAcceptsClient field", "give this name to another cluster"
    for old, new, refused in (
        (None, cluster(), ""),
        (None, cluster(accepts=False), ""),
        (None, cluster(accepts=True), field),
        (cluster(accepts=False), cluster(accepts=True), field),
        (cluster(accepts=True), cluster(accepts=False), field),
        (cluster(accepts=True), cluster(), field),
        (cluster(accepts=True), cluster(accepts=True), ""),
        (cluster(), cluster(accepts=False), ""),
        (renamed(""), renamed("uid-1"), ""),
        (renamed("uid-1"), renamed("uid-1"), ""),
        (renamed("uid-1"), renamed(""), ""),
        (renamed("uid-1"), renamed("uid-2"), name),
        (cluster(), doc.with_annotations(cluster(), {GIVEN_TO: "twin"}), "give this cluster to one of its agents"),
    ):
        admitted(CLUSTERS, new, old, may=(ACCEPT,))
        said = refusal(ForbiddenError, admitted, CLUSTERS, new, old)
        assert (said is not None) == bool(refused), (old, new)
        assert said is None or f'user "bob" cannot {refused}' in str(said), (old, new)


def test_joining_leaving_and_binding_a_cluster_set_need_the_permission_for_each() -> None:
    moves: tuple[tuple[str | None, str, tuple[str, ...]], ...] = (
        (None, "", ()),
        (None, "a", ("a",)),
        ("", "a", ("a",)),
        ("a", "", ("a",)),
        ("a", "b", ("a", "b")),
        ("a", "a", ()),
        ("default", "", ()),
        ("default", "a", ("default", "a")),
        ("a", "default", ("a", "default")),
    )
    for before, after, sets in moves:
        old, new = None if before is None else cluster(cluster_set=before), cluster(cluster_set=after)
        joins = tuple(f"create managedclustersets/join.cluster.open-cluster-management.io {name}" for name in sets)
        admitted(CLUSTERS, new, old, may=joins)
        for lacking in joins:
            with pytest.raises(ForbiddenError, match="ManagedClusterSet"):
                admitted(CLUSTERS, new, old, may=tuple(join for join in joins if join != lacking))
    document = {"metadata": {"name": "a"}, "spec": {"clusterSet": "a"}}
    admitted(BINDINGS, document, may=("create managedclustersets/bind.cluster.open-cluster-management.io a",))
    admitted(BINDINGS, document, document)
    with pytest.raises(ForbiddenError, match='is not allowed to bind cluster set "a"'):
        admitted(BINDINGS, document)


def request(*conditions: str, certificate: str = "", **labels: str) -> dict[str, Any]:
    listed = [{"type": each, "status": "True"} for each in conditions]
    status = {"conditions": listed, **({"certificate": certificate} if certificate else {})}
    return {"metadata": {"name": "r", "labels": labels}, "spec": {"signerName": SIGNER}, "status": status}


def test_deciding_and_signing_need_the_permission_for_the_signer() -> None:
    for name in (SIGNER, "kubernetes.io/*"):
        for new, verb, other in (
            (request("Approved"), "approve", "sign"),
            (request("Denied"), "approve", "sign"),
            (request("Failed"), "sign", "approve"),
            (request(certificate="abc"), "sign", "approve"),
        ):
            admitted(REQUESTS, new, request(), may=(f"{verb} signers.certificates.k8s.io {name}",))
            with pytest.raises(ForbiddenError, match=f'user not permitted to {verb} requests with signerName "{SIGNER}"'):
                admitted(REQUESTS, new, request(), may=(f"{other} signers.certificates.k8s.io {name}",))
    admitted(REQUESTS, request("Approved", certificate="abc", a="b"), request("Approved", certificate="abc"))


def rule(*decides: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "r"}, "spec": {"decides": list(decides), **spec}}


def test_a_rule_decides_only_what_its_author_may() -> None:
    rights = {
        "Accept": "update managedclusters/accept.register.open-cluster-management.io *",
        "Approve": f"approve signers.certificates.k8s.io {SIGNER}",
    }
    for decides in (("Accept",), ("Approve",), ("Accept", "Approve")):
        needed = tuple(rights[each] for each in decides)
        new = rule(*decides, clusterNames=["*"])
        admitted(RULES, new, may=needed)
        for missing in needed:
            rest = tuple(right for right in (*needed, ACCEPT) if right != missing)
            for old in (None, rule(*decides, clusterNames=["a"])):
                with pytest.raises(ForbiddenError):
                    admitted(RULES, new, old, may=rest)
    admitted(RULES, {**rule("Accept"), "status": {"accepted": 1}}, rule("Accept"))
