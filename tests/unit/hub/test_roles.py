"""Default roles and aggregation: what every hub has, what an upgrade adds, what an operator keeps."""

from typing import Any

import pytest

from hub.apiserver.groups import groups_of, with_others
from hub.domain import document as doc
from hub.domain.change import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, Document, Key, Kind
from hub.domain.request import Requester
from hub.domain.roles import AUTOUPDATE, Groups, cluster_role, cluster_roles, rule, settled
from hub.ports import Transaction
from hub.services import kinds, objects, roles
from machinery.apiserver.kinds.rbac import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLES_AND_BINDINGS
from machinery.apiserver.memory import MemoryStorage
from machinery.clock import ManualClock
from machinery.product import GROUP_SUFFIX
from tests.fakes.memory_store import MemoryStore

ADMIN = Requester("admin", ())
EXTRA = rule(("extra.example.com",), ("things",), ("get",))


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore(ManualClock())
    store.transact(roles.reconcile, Groups())
    return store


def found(store: MemoryStore, name: str, kind: Kind = CLUSTER_ROLES) -> Document | None:
    stored = store.transact(lambda tx: tx.objects.get(kind, Key("", name)))
    return stored.document if stored is not None else None


def role(store: MemoryStore, name: str) -> Document:
    document = found(store, name)
    assert document is not None
    return document


def put(store: MemoryStore, document: Document, kind: Kind = CLUSTER_ROLES) -> None:
    def use_case(tx: Transaction) -> None:
        old = tx.objects.get(kind, Key("", doc.name(document)))
        kinds.WRITE_PATHS[kind].put(tx, dict(document), old, ADMIN)

    store.transact(use_case)


def remove(store: MemoryStore, name: str, kind: Kind = CLUSTER_ROLES) -> None:
    store.transact(lambda tx: kinds.WRITE_PATHS[kind].remove(tx, objects.find(tx, kind, Key("", name)), ADMIN))


def test_every_default_is_valid_as_an_operator_would_have_to_write_it(store: MemoryStore) -> None:
    for kind, resource in ((CLUSTER_ROLES, CLUSTER_ROLE), (CLUSTER_ROLE_BINDINGS, CLUSTER_ROLE_BINDING)):
        stored = [each for (of, _), each in store.state.objects.items() if of == kind]
        assert stored
        for each in stored:
            assert resource.validate is not None
            assert list(resource.validate(each.document, None)) == []
            assert doc.labels(each.document)["kubernetes.io/bootstrapping"] == "rbac-defaults"


def test_a_second_start_writes_nothing(store: MemoryStore) -> None:
    before = store.state.revision
    assert store.transact(roles.reconcile, Groups()) == 0
    assert store.state.revision == before


def test_what_an_operator_took_away_comes_back_and_what_he_added_stays(store: MemoryStore) -> None:
    view = role(store, "system:discovery")
    put(store, {**view, "rules": [EXTRA]})
    remove(store, "system:basic-user", CLUSTER_ROLE_BINDINGS)

    assert store.transact(roles.reconcile, Groups()) == 2
    assert list(role(store, "system:discovery")["rules"]) == [EXTRA, *view["rules"]]
    assert found(store, "system:basic-user", CLUSTER_ROLE_BINDINGS) is not None


def test_what_an_operator_marked_is_left_as_it_is(store: MemoryStore) -> None:
    binding = found(store, "system:discovery", CLUSTER_ROLE_BINDINGS)
    assert binding is not None
    put(store, {**doc.with_annotations(binding, {AUTOUPDATE: "false"}), "subjects": []}, CLUSTER_ROLE_BINDINGS)

    assert store.transact(roles.reconcile, Groups()) == 0
    kept = found(store, "system:discovery", CLUSTER_ROLE_BINDINGS)
    assert kept is not None
    assert list(kept["subjects"]) == []


def test_a_default_binding_to_another_role_is_made_anew(store: MemoryStore) -> None:
    name = "system:discovery"
    remove(store, name, CLUSTER_ROLE_BINDINGS)
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    put(store, {"metadata": {"name": name}, "roleRef": reference, "subjects": []}, CLUSTER_ROLE_BINDINGS)

    assert store.transact(roles.reconcile, Groups()) == 1
    binding = found(store, name, CLUSTER_ROLE_BINDINGS)
    assert binding is not None
    assert binding["roleRef"]["name"] == name


def test_admin_has_what_edit_has_and_edit_what_view_has(store: MemoryStore) -> None:
    view, edit, admin = (list(role(store, name)["rules"]) for name in ("view", "edit", "admin"))
    assert view
    assert [each for each in view if each not in edit] == []
    assert [each for each in edit if each not in admin] == []
    assert len(view) < len(edit) < len(admin)


def test_a_role_that_is_labelled_is_aggregated_in_the_same_write(store: MemoryStore) -> None:
    label = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    put(store, cluster_role("extra-view", (EXTRA,), **label))
    for name in ("view", "edit", "admin"):
        assert EXTRA in role(store, name)["rules"]

    put(store, cluster_role("extra-view", ()))
    for name in ("view", "edit", "admin"):
        assert EXTRA not in role(store, name)["rules"]

    put(store, cluster_role("extra-view", (EXTRA,), **label))
    remove(store, "extra-view")
    for name in ("view", "edit", "admin"):
        assert EXTRA not in role(store, name)["rules"]


def test_rules_written_into_an_aggregated_role_do_not_stay(store: MemoryStore) -> None:
    view = role(store, "view")
    put(store, {**view, "rules": [EXTRA]})
    assert list(role(store, "view")["rules"]) == list(view["rules"])


def test_roles_that_aggregate_one_another_settle() -> None:
    def aggregating(name: str) -> dict[str, Any]:
        selectors = [{"matchLabels": {"team": "x"}}]
        metadata = {"name": name, "labels": {"team": "x"}}
        return {"metadata": metadata, "aggregationRule": {"clusterRoleSelectors": selectors}}

    known = {
        "a": aggregating("a"),
        "b": aggregating("b"),
        "c": {"metadata": {"name": "c", "labels": {"team": "x"}}, "rules": [EXTRA]},
    }
    assert {name: each["rules"] for name, each in settled(known).items()} == {"a": [EXTRA], "b": [EXTRA], "c": [EXTRA]}


def test_the_groups_of_the_hub_follow_its_suffix() -> None:
    groups = {
        group for each in cluster_roles(Groups("example.org")) for one in each["rules"] for group in one.get("apiGroups", ())
    }
    assert {"cluster.example.org", "addon.example.org", "register.example.org"} <= groups
    assert not any(group.endswith("open-cluster-management.io") for group in groups)


WITHHELD = {
    "secrets": "whoever reads them has what they open: edit and admin do",
    "roles": "admin does",
    "rolebindings": "admin does",
    "clusterroles": "for the whole hub",
    "clusterrolebindings": "for the whole hub",
    "certificatesigningrequests": "for who approves",
    "bootstrapcredentials": "who may join is not for everybody to know",
    "auditrecords": "who did what is not for everybody to know",
}
"""Resources that the role `view` does not show, and why."""


def test_view_shows_every_resource_that_is_not_withheld(store: MemoryStore) -> None:
    memory = MemoryStorage()
    groups = with_others(groups_of(store, GROUP_SUFFIX, memory, memory, memory), *ROLES_AND_BINDINGS)
    shown = {
        (group, resource) for one in role(store, "view")["rules"] for group in one["apiGroups"] for resource in one["resources"]
    }
    listed = [resource for group in groups for resource in group.resources if "list" in resource.verbs]

    assert {resource.name for resource in listed if (resource.group, resource.name) not in shown} == set(WITHHELD)
