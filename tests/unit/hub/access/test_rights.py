"""What the hub's records and roles entitle to, how old they may be, and what a write needs beside its own permission."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import yaml

from hub.access import rbac_cache as rolebook, rights as access_rights
from hub.access.cluster_acceptance import MAX_AGE, ClusterAcceptanceCache
from hub.access.rbac_cache import RBACCache
from hub.access.rights import CallerRecord, ClusterView, Rights, caller_record_by_name, caller_record_of, rights_of
from hub.access.rules import counted_names
from hub.api.bootstrapcredentials import CredentialRecord
from hub.api.certificates import CertificateRecord, Purpose, own_agent
from hub.api.clusterroles import ApiGroups
from hub.api.managedclusters import cluster as clusters_rules
from hub.api.managedclusters.cluster import BOUND_ONLY, CLUSTER_UID, DENIED_FOR
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
from machinery.apiserver.storage import Actor, Admission, GroupResource
from machinery.errors import ForbiddenError, UnauthorizedError, UnavailableError
from machinery.identity import CLUSTER_LABEL, AddOnName, AgentId, ClusterName, CredentialId, SerialNumber
from machinery.meta.objects import Key
from machinery.runtime.clock import ManualClock
from tests.checks import CASE_FILES, check_refusal, check_refusal_of, present, refusal
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import set_accepted

NOW = datetime(2026, 1, 1, tzinfo=UTC)
GROUPS = ApiGroups()
EDGE1, AGENT = ClusterName("edge1"), AgentId("a")
OWN = f"{CLUSTER_LABEL}=edge1"
AGENT_USER = "system:open-cluster-management:edge1:a"
KINDS = {
    "mcl": ("cluster.open-cluster-management.io", "managedclusters"),
    "csr": ("certificates.k8s.io", "certificatesigningrequests"),
    "lease": ("coordination.k8s.io", "leases"),
    "mca": ("addon.open-cluster-management.io", "managedclusteraddons"),
    "work": ("work.open-cluster-management.io", "manifestworks"),
    "event": ("events.k8s.io", "events"),
    "register": ("register.open-cluster-management.io", "managedclusters"),
    "secret": ("", "secrets"),
    "ns": ("", "namespaces"),
}
OWN_GROUP = "system:open-cluster-management:cluster:edge1:addon:metrics"
KNOWN = ("system:authenticated",)
BOB, ROOT = Actor("bob", KNOWN), Actor("root", ("system:masters",))
LIST = Attributes("list", "/x", "cluster.open-cluster-management.io", "v1", "managedclusters")
ROBOT = Actor("system:serviceaccount:edge1:metrics-agent", (*KNOWN, "system:serviceaccounts"), "u1")
ADDON = Actor("metrics", (OWN_GROUP, *KNOWN), holder=CallerRecord(Purpose.ADDON, EDGE1, user="metrics"))
CLUSTERS = GroupResource("cluster.open-cluster-management.io", "managedclusters")
BINDINGS = GroupResource("cluster.open-cluster-management.io", "managedclustersetbindings")
REQUESTS = GroupResource("certificates.k8s.io", "certificatesigningrequests")
ACCEPT = "update managedclusters/accept.register.open-cluster-management.io edge1"
RULES = GroupResource("hub.open-cluster-management.io", "approvalrules")
SIGNER = "kubernetes.io/kube-apiserver-client"
OTHER_REQUESTS = (*(f"{CLUSTER_LABEL}{end}" for end in ("=edge2", " in (edge1,edge2)", "!=edge2", "")), "a=b")


def asked(text: str, **more: str) -> Attributes:
    """`get mcl edge1`, `update mcl/status edge1`, `get lease home/x`, `list mca home/`."""
    verb, kind, where = (*text.split(" "), "")[:3]
    kind, _, part = kind.partition("/")
    namespace, _, name = where.rpartition("/")
    group, resource = KINDS[kind]
    return Attributes(verb, "/request", group, "v1", resource, part, namespace, name, **more)


def agent(*, accepted: bool = True, own: str = "a") -> Rights:
    return rights_of(CallerRecord(Purpose.AGENT, EDGE1, AGENT, AGENT_USER), ClusterView(accepted, AgentId(own)), GROUPS)


OWN_CLUSTER = ("get mcl edge1", "watch mcl edge1")
ACCEPTED = (
    *("update mcl edge1", "patch mcl/status edge1", "update mcl/status edge1", "renew register/clientcertificates"),
    *("create csr", "get lease edge1/x", "list lease edge1/", "watch lease edge1/x", "update lease edge1/x"),
    *("get mca edge1/x", "list mca edge1/", "patch mca/status edge1/x", "create event edge1/"),
    *("list work edge1/", "patch work/status edge1/x"),
)
NEVER = (
    *("get mcl edge2", "get mcl edge11", "list mcl", "watch mcl", "patch mcl edge1", "delete mcl edge1", "create mcl"),
    *("update mcl/status edge2", "update register/accept edge1", "get lease edge2/x", "list lease", "create lease edge1/"),
    *("delete lease edge1/x", "update mca edge1/x", "list mca", "patch mca/status edge2/x", "create event edge2/"),
    *("list work edge2/", "create work edge1/", "list work"),
    *("get secret edge1/x", "list secret edge1/", "get ns edge1", "update csr/approval x", "update csr/status x"),
    *("delete csr x", "list csr", "watch csr", "get csr x", "get csr/status x"),
)


def test_an_agent_sees_its_own_cluster_and_acceptance_grants_the_rest() -> None:
    every = (*OWN_CLUSTER, *ACCEPTED, *NEVER)
    assert [question for question in every if agent().allow(asked(question))] == [*OWN_CLUSTER, *ACCEPTED]
    assert [question for question in every if agent(accepted=False).allow(asked(question))] == [*OWN_CLUSTER]
    other = agent(own="b")
    assert [question for question in every if other.allow(asked(question, label_selector=OWN))] == []
    assert not other.is_request_read(asked("get csr x"))


def test_an_agent_selects_its_own_cluster_and_requests() -> None:
    for verb in ("list", "watch"):
        assert agent().allow(asked(f"{verb} mcl", selected_name="edge1"))
        assert not agent().allow(asked(f"{verb} mcl", selected_name="edge2"))
        assert agent().allow(asked(f"{verb} csr", label_selector=OWN))
        assert not agent(accepted=False).allow(asked(f"{verb} csr", label_selector=OWN))
        assert [each for each in OTHER_REQUESTS if agent().allow(asked(f"{verb} csr", label_selector=each))] == []
    assert not agent().allow(asked("deletecollection csr", label_selector=OWN)), "is no way of seeing them"
    clusters = {
        OWN: "edge1",
        f"{CLUSTER_LABEL} in (edge1),x": "edge1",
        f"{CLUSTER_LABEL}=edge1,{CLUSTER_LABEL}=edge2": "edge1",  # selects nothing
        f"{CLUSTER_LABEL}=": None,
        f"!{CLUSTER_LABEL}": None,
        "": None,
        "((": None,
    }
    assert {selector: access_rights.selected_cluster(selector) for selector in clusters} == clusters


def bootstrap(cluster: str | None) -> Rights:
    record = CredentialRecord(CredentialId("c1"), None if cluster is None else ClusterName(cluster), None, NOW, NOW, "admin")
    return rights_of(present(caller_record_of(record)), None, GROUPS)


def test_one_that_is_bound_to_no_name_looks_at_one_name_at_a_time() -> None:
    rights = bootstrap(None)
    assert rights.allow(asked("get mcl edge7"))
    assert rights.allow(asked("watch mcl", selected_name="edge7"))
    assert rights.allow(asked("watch csr", label_selector=f"{CLUSTER_LABEL}=edge7"))
    for question in ("list mcl", "watch mcl", "list csr", "update mcl edge7"):
        assert not rights.allow(asked(question)), question
    assert rights.own_request(requester="system:bootstrap:c1", cluster="edge7")
    assert not rights.own_request(requester="system:bootstrap:c2", cluster="edge7")
    for question in ("get mcl", "get csr", "list csr", "watch csr"):
        reviewed = replace(asked(question), path="")
        assert bootstrap("edge1").allow(reviewed), question
        assert not bootstrap("edge1").allow(replace(reviewed, name="edge2", verb="delete")), question
        assert not bootstrap("edge1").allow(asked(question)), question


def record(purpose: Purpose, user: str = "u", groups: tuple[str, ...] = (), **more: Any) -> CertificateRecord:
    fields = {"cluster": EDGE1, "issued_at": NOW, "serial": SerialNumber(1), **more}
    return CertificateRecord(purpose=purpose, user=user, groups=groups, not_before=NOW, not_after=NOW, key_hash="", **fields)


def test_the_own_agent_is_the_one_that_came_last_and_stands() -> None:
    later, first = NOW.replace(day=2), record(Purpose.AGENT, agent=AgentId("a"))
    second = record(Purpose.AGENT, agent=AgentId("b"), issued_at=later)
    revoked = record(Purpose.AGENT, agent=AgentId("c"), issued_at=later.replace(day=3), revoked_at=NOW)
    addon = record(Purpose.ADDON, agent=AgentId("d"), issued_at=later.replace(day=3))
    assert (own_agent([first]), own_agent([second, first, revoked, addon])) == ("a", "b")
    assert own_agent([revoked, addon]) is None
    first, second, renewed = (
        record(Purpose.AGENT, agent=AgentId(agent), issued_at=NOW.replace(day=day), serial=SerialNumber(day))
        for agent, day in (("a", 1), ("b", 2), ("a", 3))
    )
    assert own_agent([first, second, renewed]) == "b", "a superseded agent does not come back by renewing"
    assert own_agent([first, replace(second, revoked_at=NOW), renewed]) == "a"


def test_names_count_by_purpose_and_an_add_on_never_passes_for_another() -> None:
    own, generated = (f"{OWN_GROUP}:agent:x", (OWN_GROUP,)), (f"{OWN_GROUP}:agent:metrics", ())
    for user, groups, counted in (
        (*own, own),
        ("bob", ("platform", "system:masters"), generated),
        (f"{OWN_GROUP}s:agent:x", (f"{OWN_GROUP}s",), generated),
        ("system:open-cluster-management:edge2:a", ("system:open-cluster-management:edge2",), generated),
    ):
        assert counted_names(record(Purpose.ADDON, user, groups, addon=AddOnName("metrics"))) == counted, user
    assert counted_names(record(Purpose.OPERATOR, "admin", ("system:masters",))) == ("admin", ("system:masters",))
    assert counted_names(record(Purpose.AGENT, AGENT_USER, ("g", "system:masters"))) == (AGENT_USER, ("g",))
    for purpose in (Purpose.RECOVERY, Purpose.SERVING):
        check_refusal(UnauthorizedError, counted_names, record(purpose))
    assert (caller_record_of(record(Purpose.OPERATOR)), caller_record_of(None)) == (None, None)
    for purpose in (Purpose.ADDON, Purpose.RECOVERY, Purpose.SERVING):
        current = present(caller_record_of(record(purpose)))
        assert rights_of(current, ClusterView(accepted=True, agent=AGENT), GROUPS) == Rights()
    group = "system:open-cluster-management:edge1"
    assert caller_record_by_name(AGENT_USER, (group,)) == CallerRecord(Purpose.AGENT, EDGE1, AGENT, AGENT_USER)
    assert (caller_record_by_name(AGENT_USER, ()), caller_record_by_name("bob", (group,))) == (None, None)


def put(store: InlineStore, *, accepted: bool, judged: bool = False, **spec: Any) -> None:
    """Writes the cluster; `judged`: as after the controller of acceptance."""

    def use_case(tx: Transaction) -> None:
        old = tx.objects.get(MANAGED_CLUSTERS, Key("", EDGE1))
        document = {"metadata": {"name": EDGE1, **spec.pop("metadata", {})}, "spec": {"hubAcceptsClient": accepted, **spec}}
        verdict = clusters_rules.ACCEPTED if accepted else clusters_rules.DENIED
        clusters.put(tx, with_status_condition(document, verdict, tx.now) if judged else document, old, "ann")

    store.transact(use_case)


def certify(store: InlineStore, agent: str, serial: int, clock: ManualClock) -> None:
    now, user = clock.now(), f"system:open-cluster-management:{EDGE1}:{agent}"
    made = record(Purpose.AGENT, user, agent=AgentId(agent), serial=SerialNumber(serial), issued_at=now)
    valid = replace(made, not_before=now, not_after=now + timedelta(days=1), key_hash=str(serial))
    store.transact(lambda tx: tx.certificates.add(valid))


def tell(store: InlineStore, standings: ClusterAcceptanceCache, after: int) -> None:
    for change in store.state.log:
        if change.revision > after:
            standings.apply(change)


def remove(store: InlineStore) -> None:
    store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, EDGE1), "admin"))


async def test_what_nobody_tells_counts_after_the_bound(store: InlineStore, clock: ManualClock) -> None:
    standings = ClusterAcceptanceCache(store, clock)
    certify(store, "a", 1, clock)
    put(store, accepted=True)
    await standings.of(EDGE1)
    clock.advance(timedelta(seconds=1))
    certify(store, "b", 2, clock)
    store.transact(lambda tx: set_accepted(tx, EDGE1, accepted=False, actor="admin"))
    assert await standings.of(EDGE1) == ClusterView(accepted=True, agent=AgentId("a"))
    clock.advance(MAX_AGE)
    assert await standings.of(EDGE1) == ClusterView(accepted=False, agent=AgentId("b"), denied=True)


async def test_what_changes_while_it_is_read_is_not_kept(clock: ManualClock) -> None:
    class Changing(InlineStore):
        late: Callable[[], None] | None = None

        async def read(self, query: Any, *args: Any, **kwargs: Any) -> Any:
            found = await super().read(query, *args, **kwargs)
            if self.late is not None:
                late, self.late = self.late, None
                before = self.state.revision
                late()
                tell(self, standings, before)
            return found

    store = Changing(clock)
    standings = ClusterAcceptanceCache(store, clock)
    put(store, accepted=True)
    store.late = lambda: put(store, accepted=False)
    assert (await standings.of(EDGE1)).accepted, "as it was when it was asked"
    assert not (await standings.of(EDGE1)).accepted


async def test_a_cluster_that_is_being_deleted_is_not_accepted_any_more(store: InlineStore, clock: ManualClock) -> None:
    put(store, accepted=True, metadata={"finalizers": ["a/b"]})
    standings = ClusterAcceptanceCache(store, clock)
    assert (await standings.of(EDGE1)).accepted
    seen = store.state.revision
    remove(store)
    tell(store, standings, seen)
    assert not (await standings.of(EDGE1)).accepted


async def test_what_was_granted_ends_once_when_the_cluster_is_denied_or_deleted(clock: ManualClock) -> None:
    for withdraw in (partial(put, accepted=False), remove):
        store = InlineStore(clock)
        standings = ClusterAcceptanceCache(store, clock)
        ended: list[str] = []
        standings.on_end = ended.append
        put(store, accepted=True)
        standings.granted(EDGE1, "certificate/7")
        seen = store.state.revision
        put(store, accepted=True, leaseDurationSeconds=5)
        tell(store, standings, seen)
        assert ended == []
        seen = store.state.revision
        withdraw(store)
        tell(store, standings, seen)
        assert ended == ["certificate/7"], withdraw
        seen = store.state.revision
        put(store, accepted=False, leaseDurationSeconds=7)
        tell(store, standings, seen)
        assert ended == ["certificate/7"], withdraw


@pytest.fixture
async def store(clock: ManualClock) -> InlineStore:
    store = InlineStore(clock)
    await store.run(clusterroles.reconcile, ApiGroups())
    return store


def bind(tx: Transaction, name: str, user: str) -> None:
    document: dict[str, Any] = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}],
    }
    objects.put(tx, CLUSTER_ROLE_BINDINGS, document, tx.objects.get(CLUSTER_ROLE_BINDINGS, Key("", name)), "admin")


async def test_roles_decide_only_while_they_are_proven_to_be_current(store: InlineStore, clock: ManualClock) -> None:
    book = RBACCache(store, clock)
    rbac = RbacAuthorizer(book)
    check_refusal(UnavailableError, rbac.decide, BOB, LIST)
    assert rbac.decide(ROOT, LIST).allowed
    await book.load()
    clock.advance(rolebook.MAX_AGE)
    assert not rbac.decide(BOB, LIST).allowed
    clock.advance(timedelta(milliseconds=1))
    check_refusal(UnavailableError, rbac.decide, BOB, LIST, match="cannot be evaluated now")
    await book.prove()
    assert not rbac.decide(BOB, LIST).allowed
    clock.advance(rolebook.MAX_AGE + timedelta(seconds=1))
    store.failure = UnavailableError("away")
    await check_refusal_of(UnavailableError, book.prove())
    check_refusal(UnavailableError, book.check)
    store.failure = None
    await store.run(bind, "bob", "bob")  # the book does not follow the log, so it lags
    proving = asyncio.create_task(book.prove())
    await asyncio.wait((proving,), timeout=0.02)
    assert not proving.done()
    proving.cancel()
    check_refusal(UnavailableError, book.check)


async def authorizer(store: InlineStore, *, revocations_unreadable: bool = False) -> HubAuthorizer:
    clock = ManualClock()
    book = RBACCache(store, clock)
    if not revocations_unreadable:
        await book.load()
    return HubAuthorizer(store, RbacAuthorizer(book), ClusterAcceptanceCache(store, clock), ApiGroups())


async def test_version_health_and_own_reviews_need_no_role(store: InlineStore) -> None:
    revocations_unreadable, sighted = await authorizer(store, revocations_unreadable=True), await authorizer(store)
    for path in ("/livez", "/readyz", "/healthz", "/version"):
        for actor in (ANONYMOUS, BOB, ROOT):
            assert (await revocations_unreadable.authorize(actor, Attributes("get", path))).allowed, (path, actor)
    await check_refusal_of(UnavailableError, revocations_unreadable.authorize(BOB, LIST))
    assert (await revocations_unreadable.authorize(ROOT, LIST)).allowed
    assert (await sighted.authorize(BOB, Attributes("get", "/apis/x/v1"))).allowed
    for refused in (Attributes("get", "/apis"), Attributes("get", "/readyz/ping"), Attributes("post", "/livez")):
        assert not (await sighted.authorize(ANONYMOUS, refused)).allowed
    held = {resource for rule in (await sighted.rules(BOB, "default")).rules for resource in rule.resources}
    assert held == {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}
    assert not (await sighted.authorize(BOB, LIST)).allowed


def bind_viewers(store: InlineStore) -> None:
    subjects = [{"kind": "ServiceAccount", "namespace": "edge1", "name": "metrics-agent"}]
    subjects.append({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": ADDON.groups[0]})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    document = {"metadata": {"name": "looks"}, "subjects": subjects, "roleRef": reference}
    store.transact(objects.put, CLUSTER_ROLE_BINDINGS, document, None, "ann")


async def test_a_denial_ends_what_a_clusters_service_accounts_and_addons_may(store: InlineStore) -> None:
    """OCM 5.2: accept, then deny; here tokens and add-ons' certificates lose their rights with it too."""
    bind_viewers(store)
    put(store, accepted=True, judged=True)
    for actor in (ROBOT, ADDON):
        assert (await (await authorizer(store)).authorize(actor, LIST)).allowed
    put(store, accepted=False, judged=True)
    denied = await authorizer(store)
    for actor in (ROBOT, ADDON):
        assert not (await denied.authorize(actor, LIST)).allowed
    assert 'cluster "edge1" is denied' in (await denied.authorize(ROBOT, LIST)).reason
    assert (await denied.rules(ROBOT, "edge1")).rules == ()


async def test_accounts_of_a_namespace_whose_name_a_newcomer_takes_keep_their_rights(store: InlineStore) -> None:
    bind_viewers(store)
    assert (await (await authorizer(store)).authorize(ROBOT, LIST)).allowed
    put(store, accepted=False)
    assert (await (await authorizer(store)).authorize(ROBOT, LIST)).allowed


async def test_addons_of_a_cluster_that_is_being_deleted_can_clean_up(store: InlineStore) -> None:
    """OCM: rights outlive what they clean up."""
    bind_viewers(store)
    put(store, accepted=True, judged=True)
    store.transact(addons.put, {"metadata": {"name": "metrics", "namespace": "edge1"}}, None, "ann")
    store.transact(lambda tx: clusters.remove(tx, clusters.find(tx, ClusterName("edge1")), "ann"))
    assert (await (await authorizer(store)).authorize(ADDON, LIST)).allowed
    agent = Actor("a", KNOWN, holder=CallerRecord(Purpose.AGENT, ClusterName("edge1"), AgentId("a"), "a"))
    assert not (await (await authorizer(store)).authorize(agent, LIST)).allowed


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

    HubAdmission(decide, ApiGroups())(
        Admission(resource, Key("", new.get("metadata", {}).get("name", "edge1")), new, old, actor)
    )


def cluster(*, accepts: bool | None = None, cluster_set: str = "") -> dict[str, Any]:
    metadata = {"name": "edge1", "labels": {LABEL: cluster_set} if cluster_set else {}}
    return {"metadata": metadata, "spec": {} if accepts is None else {"hubAcceptsClient": accepts}}


def renamed(uid: str) -> dict[str, Any]:
    return doc.with_annotations(cluster(), {CLUSTER_UID: uid} if uid else {})


def test_accepting_denying_and_replacing_a_cluster_need_the_permission_to_accept() -> None:
    field, name = "update the HubAcceptsClient field", "give this name to another cluster"
    bound = doc.with_annotations(cluster(), {BOUND_ONLY: "true"})
    for old, new, refused in (
        *((None, cluster(), ""), (None, cluster(accepts=False), ""), (None, cluster(accepts=True), field)),
        *((cluster(accepts=False), cluster(accepts=True), field), (cluster(accepts=True), cluster(accepts=False), field)),
        *((cluster(accepts=True), cluster(), field), (cluster(accepts=True), cluster(accepts=True), "")),
        *((cluster(), cluster(accepts=False), ""), (renamed(""), renamed("uid-1"), "")),
        *((renamed("uid-1"), renamed("uid-1"), ""), (renamed("uid-1"), renamed(""), name)),
        *((renamed("uid-1"), renamed("uid-2"), name), (cluster(), bound, "")),
        (bound, doc.with_annotations(bound, {BOUND_ONLY: "false"}), f"remove the annotation {BOUND_ONLY}"),
        (cluster(), doc.with_annotations(cluster(), {DENIED_FOR: ""}), "deny this cluster"),
        (cluster(), doc.with_annotations(cluster(), {GIVEN_TO: "twin"}), "give this cluster to one of its agents"),
    ):
        admitted(CLUSTERS, new, old, may=(ACCEPT,))
        text = refusal(ForbiddenError, admitted, CLUSTERS, new, old)
        assert (text is not None) == bool(refused), (old, new)
        assert text is None or f'user "bob" cannot {refused}' in str(text), (old, new)
    agent = Actor("a", KNOWN, holder=CallerRecord(Purpose.AGENT, EDGE1, AgentId("a"), "a"))
    late = {**cluster(accepts=False), "status": {"conditions": []}}  # authorized before the denial, sent after it
    check_refusal(ForbiddenError, admitted, CLUSTERS, late, cluster(accepts=False), agent, match="that is not accepted")


def test_joining_leaving_and_binding_a_cluster_set_need_the_permission_for_each() -> None:
    for before, after, sets in yaml.safe_load((CASE_FILES / "sets.yaml").read_text())["moves"]:
        old, new = None if before is None else cluster(cluster_set=before), cluster(cluster_set=after)
        joins = tuple(f"create managedclustersets/join.cluster.open-cluster-management.io {name}" for name in sets)
        admitted(CLUSTERS, new, old, may=joins)
        for lacking in joins:
            with pytest.raises(ForbiddenError, match="ManagedClusterSet"):
                admitted(CLUSTERS, new, old, may=tuple(join for join in joins if join != lacking))
    document = {"metadata": {"name": "a"}, "spec": {"clusterSet": "a"}}
    admitted(BINDINGS, document, may=("create managedclustersets/bind.cluster.open-cluster-management.io a",))
    admitted(BINDINGS, document, document)
    check_refusal(ForbiddenError, admitted, BINDINGS, document, match='is not allowed to bind cluster set "a"')


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
                check_refusal(ForbiddenError, admitted, RULES, new, old, may=rest)
    admitted(RULES, {**rule("Accept"), "status": {"accepted": 1}}, rule("Accept"))
