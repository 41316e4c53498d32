"""Default roles and aggregation: what every hub has, what an upgrade adds, what an operator keeps."""

from typing import Any

import pytest

from hub.api.certificatesigningrequests import Requester
from hub.api.clusterroles import AUTOUPDATE, ApiGroups, with_aggregation
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, Kind
from hub.https_door.groups import groups_of
from hub.registry import clusterroles, kinds
from hub.registry.generic import objects
from machinery.apiserver.kinds.rbac import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLES_AND_BINDINGS
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.meta.objects import Document, Key, Query
from machinery.product import GROUP_SUFFIX
from tests.checks import present
from tests.fakes.inline_store import InlineStore
from tests.fakes.registration import fresh_store

ADMIN = Requester("admin", ())
EXTRA = {"verbs": ["get"], "apiGroups": ["extra.example.com"], "resources": ["things"]}


@pytest.fixture
def store() -> InlineStore:
    store = fresh_store()
    store.transact(clusterroles.reconcile, ApiGroups())
    return store


def found(store: InlineStore, name: str, kind: Kind = CLUSTER_ROLES) -> Document | None:
    stored = store.transact(lambda tx: tx.objects.get(kind, Key("", name)))
    return stored.document if stored is not None else None


def role(store: InlineStore, name: str) -> Document:
    return present(found(store, name))


def put(store: InlineStore, document: Document, kind: Kind = CLUSTER_ROLES) -> None:
    old = store.transact(lambda tx: tx.objects.get(kind, Key("", doc.name(document))))
    store.transact(kinds.WRITE_PATHS[kind].put, dict(document), old, ADMIN)


def remove(store: InlineStore, name: str, kind: Kind = CLUSTER_ROLES) -> None:
    store.transact(lambda tx: kinds.WRITE_PATHS[kind].remove(tx, objects.find(tx, kind, Key("", name)), ADMIN))


def test_defaults_are_valid_and_a_second_start_writes_nothing(store: InlineStore) -> None:
    for kind, resource in ((CLUSTER_ROLES, CLUSTER_ROLE), (CLUSTER_ROLE_BINDINGS, CLUSTER_ROLE_BINDING)):
        stored = store.transact(lambda tx, kind: tx.objects.find(kind, Query()), kind).items
        assert stored
        for each in stored:
            assert list(present(resource.validate)(each.document, None)) == []
            assert doc.labels(each.document)["kubernetes.io/bootstrapping"] == "rbac-defaults"
    before = store.state.revision
    assert (store.transact(clusterroles.reconcile, ApiGroups()), store.state.revision) == (0, before)


def test_defaults_are_restored_except_an_operators_additions_and_marked_objects(store: InlineStore) -> None:
    name, view = "system:discovery", role(store, "system:discovery")
    put(store, {**view, "rules": [EXTRA]})
    remove(store, "system:basic-user", CLUSTER_ROLE_BINDINGS)
    remove(store, name, CLUSTER_ROLE_BINDINGS)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    put(store, {"metadata": {"name": name}, "roleRef": reference, "subjects": []}, CLUSTER_ROLE_BINDINGS)
    assert store.transact(clusterroles.reconcile, ApiGroups()) == 3
    assert list(role(store, name)["rules"]) == [EXTRA, *view["rules"]]
    assert found(store, "system:basic-user", CLUSTER_ROLE_BINDINGS) is not None
    binding = present(found(store, name, CLUSTER_ROLE_BINDINGS))
    assert binding["roleRef"]["name"] == name, "a binding to another role is replaced"
    put(store, {**doc.with_annotations(binding, {AUTOUPDATE: "false"}), "subjects": []}, CLUSTER_ROLE_BINDINGS)
    assert store.transact(clusterroles.reconcile, ApiGroups()) == 0
    assert list(present(found(store, name, CLUSTER_ROLE_BINDINGS))["subjects"]) == []


def test_view_edit_and_admin_aggregate_labelled_roles_in_the_same_write(store: InlineStore) -> None:
    names = ("view", "edit", "admin")
    view, edit, admin = (list(role(store, name)["rules"]) for name in names)
    assert view
    assert ([each for each in view if each not in edit], [each for each in edit if each not in admin]) == ([], [])
    assert len(view) < len(edit) < len(admin)

    def aggregated() -> list[bool]:
        return [EXTRA in role(store, name)["rules"] for name in names]

    label = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    extra = {"metadata": {"name": "extra-view", "labels": label}, "rules": [EXTRA]}
    put(store, extra)
    assert all(aggregated())
    put(store, {"metadata": {"name": "extra-view"}, "rules": []})
    assert not any(aggregated())
    put(store, extra)
    remove(store, "extra-view")
    assert not any(aggregated())
    put(store, {**role(store, "view"), "rules": [EXTRA]})
    assert list(role(store, "view")["rules"]) == view, "rules written into an aggregated role do not stay"


def test_roles_that_aggregate_one_another_settle() -> None:
    def aggregating(name: str) -> dict[str, Any]:
        selectors = [{"matchLabels": {"team": "x"}}]
        return {"metadata": {"name": name, "labels": {"team": "x"}}, "aggregationRule": {"clusterRoleSelectors": selectors}}

    known = {
        "a": aggregating("a"),
        "b": aggregating("b"),
        "c": {"metadata": {"name": "c", "labels": {"team": "x"}}, "rules": [EXTRA]},
    }
    assert {name: each["rules"] for name, each in with_aggregation(known).items()} == {"a": [EXTRA], "b": [EXTRA], "c": [EXTRA]}


WITHHELD = {
    "secrets": "a reader of them has what they open: edit and admin do",
    "roles": "admin does",
    "rolebindings": "admin does",
    "clusterroles": "for the whole hub",
    "clusterrolebindings": "for the whole hub",
    "certificatesigningrequests": "for who approves",
    "bootstrapcredentials": "who may join is not for everybody to know",
    "auditrecords": "who did what is not for everybody to know",
    "consolesessions": "who is signed in, and from where, is not for everybody to know",
}  # resources that the role `view` does not show, and why


def test_view_shows_every_resource_that_is_not_withheld(store: InlineStore) -> None:
    memory = MemoryStorage()
    groups = groups_of(store, GROUP_SUFFIX, memory, memory, memory, *ROLES_AND_BINDINGS)
    shown = {
        (group, resource) for one in role(store, "view")["rules"] for group in one["apiGroups"] for resource in one["resources"]
    }
    listed = [resource for group in groups for resource in group.resources if "list" in resource.verbs]
    assert {resource.name for resource in listed if (resource.group, resource.name) not in shown} == set(WITHHELD)
