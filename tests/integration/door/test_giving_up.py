"""hubctl delete cluster --force, where something is in its way: a cluster that lives on is never left to be given up."""

from pathlib import Path

from hub.domain.certificate import Holder, IssuedCertificate, Profile, Purpose
from hub.domain.change import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, MANAGED_CLUSTERS, Key
from hub.domain.removal import FINALIZER, FORCED
from hub.ports import Transaction
from hub.services import clusters, objects
from machinery import pki
from machinery.identity import Subject
from tests.fakes.hubctl import hubctl_at
from tests.fakes.issuing import sign_anything
from tests.integration.door.conftest import LIFETIMES, HubUnderTest

RBAC = "rbac.authorization.k8s.io"


async def enter(hub: HubUnderTest, *finalizers: str, **annotations: str) -> None:
    metadata = {"name": "edge1", "finalizers": list(finalizers), "annotations": annotations}
    await hub.store.run(clusters.put, {"metadata": metadata, "spec": {"hubAcceptsClient": True}}, None, "test")


async def clerk(hub: HubUnderTest) -> Path:
    """Somebody who may change clusters and may not delete any."""
    verbs = ["get", "list", "patch", "update"]
    role = {
        "metadata": {"name": "clerk"},
        "rules": [
            {"verbs": verbs, "apiGroups": ["*"], "resources": ["managedclusters", "managedclusteraddons"]},
        ],
    }
    binding = {
        "metadata": {"name": "clerk"},
        "subjects": [{"kind": "User", "name": "clerk", "apiGroup": RBAC}],
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "clerk"},
    }
    await hub.store.run(objects.put, CLUSTER_ROLES, role, None, "test")
    await hub.store.run(objects.put, CLUSTER_ROLE_BINDINGS, binding, None, "test")
    key = pki.generate_key()

    def sign(tx: Transaction) -> IssuedCertificate:
        begin, end = tx.now - LIFETIMES.backdate, tx.now + LIFETIMES.operator
        profile = Profile(Purpose.LOGIN, Subject("clerk"), pki.public_key_of(key), begin, end)
        return sign_anything(tx, hub.issuer, profile, Holder())

    return hub.kubeconfig("clerk", await hub.store.run(sign), key)


async def annotations(hub: HubUnderTest) -> dict[str, str] | None:
    def read(tx: Transaction) -> dict[str, str] | None:
        stored = tx.objects.get(MANAGED_CLUSTERS, Key("", "edge1"))
        return None if stored is None else dict(stored.document["metadata"].get("annotations") or {})

    return await hub.store.read(read)


async def test_whoever_may_not_delete_a_cluster_leaves_nothing_on_it(hub: HubUnderTest) -> None:
    await enter(hub, FINALIZER)
    said = await hubctl_at(await clerk(hub), "delete", "cluster", "edge1", "--force")
    assert said.code != 0
    assert "cannot delete" in said.err
    assert await annotations(hub) == {}


async def test_a_cluster_is_given_up_once_it_is_being_deleted(hub: HubUnderTest) -> None:
    await enter(hub, FINALIZER)
    said = await hubctl_at(await hub.admin(), "delete", "cluster", "edge1", "--force", "--dry-run")
    assert (said.code, await annotations(hub)) == (0, {}), said
    said = await hubctl_at(await hub.admin(), "delete", "cluster", "edge1", "--force")
    assert (said.code, said.out) == (0, 'cluster "edge1" is being deleted by force\n'), said
    assert await annotations(hub) == {FORCED: "true"}


async def test_a_plain_deletion_says_that_a_cluster_is_given_up_because_somebody_marked_it(hub: HubUnderTest) -> None:
    await enter(hub, FINALIZER, **{FORCED: "true"})
    said = await hubctl_at(await hub.admin(), "delete", "cluster", "edge1")
    assert said.code == 0, said
    assert f"warning: nothing is waited for: it bears the annotation {FORCED}" in said.err
