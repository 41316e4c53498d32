"""An add-on that identifies itself by a token has what it needs for that on the hub, as long as it does."""

from typing import Any

import pytest

from hub.domain import addon_token as rules
from hub.domain import document as doc
from hub.domain.change import ADDONS, MANAGED_CLUSTERS, ROLE_BINDINGS, ROLES, SERVICE_ACCOUNTS, Kind
from hub.services import namespaces
from machinery import conditions
from machinery.conditions import Condition
from tests.fakes.fleetwork import Fleetwork, addon, cluster, find, put, remove
from tests.unit.hub.controllers.conftest import Hub

BY_TOKEN = [{"type": "kubeClient", "kubeClient": {"driver": "token"}}]
BY_CERTIFICATE = [{"type": "kubeClient", "kubeClient": {"driver": "csr"}}]
NAMES: dict[Kind, str] = {SERVICE_ACCOUNTS: "x-agent", ROLES: "x-token-role", ROLE_BINDINGS: "x-token-role"}


def part(hub: Hub, kind: Kind) -> dict[str, Any]:
    stored = hub.store.transact(find, kind, NAMES[kind], "c1")
    assert stored is not None
    return dict(stored.document)


def parts(hub: Hub) -> list[Kind]:
    return [kind for kind, name in NAMES.items() if hub.store.transact(find, kind, name, "c1") is not None]


def ready(hub: Hub) -> Condition | None:
    stored = hub.store.transact(find, ADDONS, "x", "c1")
    assert stored is not None
    return conditions.find(doc.conditions(stored.document), rules.READY)


def registers(hub: Hub, registrations: list[dict[str, Any]]) -> None:
    stored = hub.store.transact(find, ADDONS, "x", "c1")
    before = stored.document if stored else addon("x", "c1")
    hub.store.transact(put, ADDONS, doc.with_status(before, registrations=registrations))


@pytest.fixture
async def work(hub: Hub) -> Fleetwork:
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c1"))
    registers(hub, BY_TOKEN)
    driven = Fleetwork(hub.store)
    await driven.start()
    return driven


async def test_an_add_on_by_token_gets_an_account_and_its_agent_the_right_to_it(hub: Hub, work: Fleetwork) -> None:
    assert parts(hub) == list(NAMES)
    labels = doc.labels(part(hub, SERVICE_ACCOUNTS))
    assert labels == {
        "addon.open-cluster-management.io/token-infrastructure": "true",
        "addon.open-cluster-management.io/name": "x",
        "open-cluster-management.io/cluster-name": "c1",
    }
    (rule,) = part(hub, ROLES)["rules"]
    assert rule == {
        "apiGroups": [""],
        "resources": ["serviceaccounts/token"],
        "resourceNames": ["x-agent"],
        "verbs": ["create"],
    }
    binding = part(hub, ROLE_BINDINGS)
    assert [subject["name"] for subject in binding["subjects"]] == ["system:open-cluster-management:c1"]
    assert binding["roleRef"]["name"] == "x-token-role"
    assert [told.reason for told in work.told] == ["TokenInfrastructureReady"]


async def test_the_condition_says_the_uid_in_the_words_that_agents_read(hub: Hub, work: Fleetwork) -> None:
    del work
    found, uid = ready(hub), part(hub, SERVICE_ACCOUNTS)["metadata"]["uid"]
    assert found is not None
    assert (found.status, found.reason) == ("True", "TokenInfrastructureReady")
    assert found.message == f"ServiceAccount c1/x-agent (UID: {uid}) is ready"


async def test_an_add_on_by_certificate_gets_nothing(hub: Hub) -> None:
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c1"))
    registers(hub, BY_CERTIFICATE)
    before = hub.revision
    await Fleetwork(hub.store).start()
    assert (parts(hub), ready(hub), hub.revision) == ([], None, before)


async def test_what_is_deleted_or_changed_comes_back_as_it_was(hub: Hub, work: Fleetwork) -> None:
    hub.store.transact(remove, SERVICE_ACCOUNTS, "x-agent", "c1")
    everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
    hub.store.transact(put, ROLES, {**part(hub, ROLES), "rules": [everything]})
    hub.store.transact(put, ROLE_BINDINGS, {**part(hub, ROLE_BINDINGS), "subjects": []})
    await work.settle()
    assert part(hub, ROLES)["rules"][0]["resourceNames"] == ["x-agent"]
    assert len(part(hub, ROLE_BINDINGS)["subjects"]) == 1
    found, uid = ready(hub), part(hub, SERVICE_ACCOUNTS)["metadata"]["uid"]
    assert found is not None
    assert uid in found.message, "agents ask for a new token when the account is another"


async def test_another_driver_takes_all_of_it_away(hub: Hub, work: Fleetwork) -> None:
    registers(hub, BY_CERTIFICATE)
    await work.settle()
    assert (parts(hub), ready(hub)) == ([], None)


@pytest.mark.parametrize("held", [False, True])
async def test_it_goes_with_the_add_on_also_while_that_waits_for_its_end(hub: Hub, work: Fleetwork, *, held: bool) -> None:
    if held:
        stored = hub.store.transact(find, ADDONS, "x", "c1")
        assert stored is not None
        hub.store.transact(put, ADDONS, doc.with_metadata(stored.document, finalizers=["example.com/hold"]))
    hub.store.transact(remove, ADDONS, "x", "c1")
    await work.settle()
    assert parts(hub) == []


async def test_what_an_add_on_left_behind_while_nobody_looked_goes_at_the_next_start(hub: Hub, work: Fleetwork) -> None:
    hub.store.transact(remove, ADDONS, "x", "c1")
    await work.start()
    assert parts(hub) == []


async def test_an_account_of_somebody_else_is_neither_used_nor_taken_away(hub: Hub) -> None:
    hub.store.transact(put, MANAGED_CLUSTERS, cluster("c1"))
    hub.store.transact(put, SERVICE_ACCOUNTS, {"metadata": {"name": "x-agent", "namespace": "c1"}})
    registers(hub, BY_TOKEN)
    work = Fleetwork(hub.store)
    await work.start()
    found = ready(hub)
    assert found is not None
    assert (found.status, found.reason) == ("False", "TokenInfrastructureApplyFailed")
    assert "serviceaccounts c1/x-agent exists" in found.message
    assert parts(hub) == [SERVICE_ACCOUNTS]
    assert [told.type for told in work.told] == ["Warning"]
    hub.store.transact(remove, ADDONS, "x", "c1")
    await work.settle()
    assert parts(hub) == [SERVICE_ACCOUNTS]


async def test_in_a_namespace_that_ends_nothing_is_made(hub: Hub, work: Fleetwork) -> None:
    hub.store.transact(lambda tx: namespaces.remove(tx, namespaces.get(tx, "c1"), "admin"))  # type: ignore[arg-type]
    hub.store.transact(remove, SERVICE_ACCOUNTS, "x-agent", "c1")
    await work.settle()
    assert SERVICE_ACCOUNTS not in parts(hub)
    found = ready(hub)
    assert found is not None
    assert found.status == "False"


async def test_whoever_looks_again_writes_nothing(hub: Hub, work: Fleetwork) -> None:
    before = hub.revision
    await Fleetwork(hub.store).start()
    await work.start()
    assert hub.revision == before
