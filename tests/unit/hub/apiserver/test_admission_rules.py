"""What must be allowed beside the write itself: accepting and denying, cluster sets, signers, one's own cluster."""

from collections.abc import Mapping
from typing import Any

import pytest

from hub.access.rights import Standing
from hub.apiserver.admission import HubAdmission
from hub.domain import document as doc
from hub.domain.certificate import Purpose
from hub.domain.cluster import CLUSTER_UID
from hub.domain.clusterset import LABEL
from hub.domain.request import CLUSTER_LABEL
from hub.domain.roles import Groups
from machinery.apiserver.access import Attributes, Decision
from machinery.apiserver.admission import Admission
from machinery.apiserver.storage import Actor, GroupResource, Key
from machinery.errors import ForbiddenError
from machinery.identity import ClusterName

CLUSTERS = GroupResource("cluster.open-cluster-management.io", "managedclusters")
BINDINGS = GroupResource("cluster.open-cluster-management.io", "managedclustersetbindings")
REQUESTS = GroupResource("certificates.k8s.io", "certificatesigningrequests")
ACCEPT = "update managedclusters/accept.register.open-cluster-management.io edge1"
RULES = GroupResource("hub.open-cluster-management.io", "approvalrules")
SIGNER = "kubernetes.io/kube-apiserver-client"
BOB = Actor("bob")


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


@pytest.mark.parametrize(
    ("old", "new", "asks"),
    [
        (None, cluster(), False),
        (None, cluster(accepts=False), False),
        (None, cluster(accepts=True), True),
        (cluster(accepts=False), cluster(accepts=True), True),
        (cluster(accepts=True), cluster(accepts=False), True),
        (cluster(accepts=True), cluster(), True),
        (cluster(accepts=True), cluster(accepts=True), False),
        (cluster(), cluster(accepts=False), False),
    ],
)
def test_accepting_and_denying_need_the_permission(old: Any, new: Any, *, asks: bool) -> None:
    admitted(CLUSTERS, new, old, may=(ACCEPT,))
    if asks:
        with pytest.raises(ForbiddenError, match='user "bob" cannot update the HubAcceptsClient field'):
            admitted(CLUSTERS, new, old)
    else:
        admitted(CLUSTERS, new, old)


@pytest.mark.parametrize(
    ("before", "after", "asks"),
    [("", "uid-1", False), ("uid-1", "uid-1", False), ("uid-1", "", False), ("uid-1", "uid-2", True)],
)
def test_giving_a_name_to_another_cluster_needs_the_permission_to_accept(before: str, after: str, *, asks: bool) -> None:
    old, new = (doc.with_annotations(cluster(), {CLUSTER_UID: uid} if uid else {}) for uid in (before, after))
    admitted(CLUSTERS, new, old, may=(ACCEPT,))
    if asks:
        with pytest.raises(ForbiddenError, match='user "bob" cannot give this name to another cluster'):
            admitted(CLUSTERS, new, old)
    else:
        admitted(CLUSTERS, new, old)


@pytest.mark.parametrize(
    ("old", "new", "sets"),
    [
        (None, cluster(), ()),
        (None, cluster(cluster_set="a"), ("a",)),
        (cluster(), cluster(cluster_set="a"), ("a",)),
        (cluster(cluster_set="a"), cluster(), ("a",)),
        (cluster(cluster_set="a"), cluster(cluster_set="b"), ("a", "b")),
        (cluster(cluster_set="a"), cluster(cluster_set="a"), ()),
        (cluster(cluster_set="default"), cluster(), ()),
        (cluster(cluster_set="default"), cluster(cluster_set="a"), ("default", "a")),
        (cluster(cluster_set="a"), cluster(cluster_set="default"), ("a", "default")),
    ],
)
def test_joining_and_leaving_a_cluster_set_need_the_permission_for_each(old: Any, new: Any, sets: tuple[str, ...]) -> None:
    joins = tuple(f"create managedclustersets/join.cluster.open-cluster-management.io {name}" for name in sets)
    admitted(CLUSTERS, new, old, may=joins)
    for lacking in joins:
        with pytest.raises(ForbiddenError, match="ManagedClusterSet"):
            admitted(CLUSTERS, new, old, may=tuple(join for join in joins if join != lacking))


def test_binding_a_cluster_set_needs_the_permission_at_its_creation() -> None:
    document = {"metadata": {"name": "a"}, "spec": {"clusterSet": "a"}}
    admitted(BINDINGS, document, may=("create managedclustersets/bind.cluster.open-cluster-management.io a",))
    admitted(BINDINGS, document, document)
    with pytest.raises(ForbiddenError, match='is not allowed to bind cluster set "a"'):
        admitted(BINDINGS, document)


def request(*conditions: str, certificate: str = "", **labels: str) -> dict[str, Any]:
    listed = [{"type": each, "status": "True"} for each in conditions]
    status = {"conditions": listed, **({"certificate": certificate} if certificate else {})}
    return {"metadata": {"name": "r", "labels": labels}, "spec": {"signerName": SIGNER}, "status": status}


@pytest.mark.parametrize("name", [SIGNER, "kubernetes.io/*"])
@pytest.mark.parametrize(
    ("new", "verb"),
    [
        (request("Approved"), "approve"),
        (request("Denied"), "approve"),
        (request("Failed"), "sign"),
        (request(certificate="abc"), "sign"),
    ],
)
def test_deciding_and_signing_need_the_signer(new: Any, verb: str, name: str) -> None:
    admitted(REQUESTS, new, request(), may=(f"{verb} signers.certificates.k8s.io {name}",))
    other = {"approve": "sign", "sign": "approve"}[verb]
    with pytest.raises(ForbiddenError, match=f'user not permitted to {verb} requests with signerName "{SIGNER}"'):
        admitted(REQUESTS, new, request(), may=(f"{other} signers.certificates.k8s.io {name}",))


def test_other_changes_of_a_request_need_no_signer() -> None:
    admitted(REQUESTS, request("Approved", certificate="abc", a="b"), request("Approved", certificate="abc"))


@pytest.mark.parametrize(
    ("purpose", "bound", "refused"),
    [(Purpose.AGENT, "edge1", True), (Purpose.BOOTSTRAP, "edge1", True), (Purpose.BOOTSTRAP, None, False)],
)
def test_whoever_is_bound_to_a_cluster_writes_about_it_alone(purpose: Purpose, bound: str | None, *, refused: bool) -> None:
    actor = Actor("x", holder=Standing(purpose, None if bound is None else ClusterName(bound)))
    other = {"metadata": {"name": "edge2"}, "spec": {}}
    labelled = request(**{CLUSTER_LABEL: "edge2"})

    admitted(CLUSTERS, cluster(), actor=actor)
    admitted(REQUESTS, request(**{CLUSTER_LABEL: "edge1"}), actor=actor)
    admitted(REQUESTS, request(), actor=actor)
    for resource, document in ((CLUSTERS, other), (REQUESTS, labelled)):
        if refused:
            with pytest.raises(ForbiddenError, match='cannot act for cluster "edge2"'):
                admitted(resource, document, actor=actor)
        else:
            admitted(resource, document, actor=actor)


ACCEPT_ALL = "update managedclusters/accept.register.open-cluster-management.io *"
APPROVE = f"approve signers.certificates.k8s.io {SIGNER}"


def rule(*decides: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "r"}, "spec": {"decides": list(decides), **spec}}


@pytest.mark.parametrize(
    ("decides", "needed"),
    [(("Accept",), (ACCEPT_ALL,)), (("Approve",), (APPROVE,)), (("Accept", "Approve"), (ACCEPT_ALL, APPROVE))],
)
def test_nobody_has_a_rule_decide_what_he_may_not(decides: tuple[str, ...], needed: tuple[str, ...]) -> None:
    new = rule(*decides, clusterNames=["*"])
    admitted(RULES, new, may=needed)
    for missing in needed:
        rest = tuple(right for right in (*needed, ACCEPT) if right != missing)
        with pytest.raises(ForbiddenError):
            admitted(RULES, new, may=rest)
        with pytest.raises(ForbiddenError):
            admitted(RULES, new, rule(*decides, clusterNames=["a"]), may=rest)


def test_what_leaves_a_rules_decisions_alone_needs_no_right_to_them() -> None:
    admitted(RULES, {**rule("Accept"), "status": {"accepted": 1}}, rule("Accept"))
