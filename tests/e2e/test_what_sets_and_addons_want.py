"""What the hub wants of a cluster beside its state: namespaces of its sets, and credentials of add-ons; with real processes."""

from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import yaml

from machinery.errors import NotFoundError
from machinery.kube.client import KubeClient
from tests.e2e.processes import Bench, until
from tests.e2e.test_cluster_side import AUTO

pytestmark = pytest.mark.e2e

SETS = "/apis/cluster.open-cluster-management.io/v1beta2/managedclustersets"
ADDONS = "/apis/addon.open-cluster-management.io/v1beta1/namespaces/c1/managedclusteraddons"
WHO_AM_I = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
SECRET = "/api/v1/namespaces/addons/secrets/logs-hub-kubeconfig"  # noqa: S105 - the path of a secret


async def test_a_set_gets_its_namespace_and_an_add_on_a_token_that_its_hub_takes(bench: Bench, tmp_path: Path) -> None:
    await bench.hub(*AUTO)
    kubeconfig = await bench.hollow("c1")
    await bench.spoke("c1", None, "--addon-kubeclient-registration-auth=token")
    await bench.available("c1")
    async with await KubeClient.from_file(kubeconfig) as cluster, await KubeClient.from_file(bench.admin) as hub:
        await hub.patch(f"{SETS}/default", {"spec": {"managedNamespaces": [{"name": "team-a"}]}})
        await cluster.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "addons"}})
        addon = {"apiVersion": "addon.open-cluster-management.io/v1beta1", "kind": "ManagedClusterAddOn"}
        await hub.create(ADDONS, {**addon, "metadata": {"name": "logs"}, "spec": {}})
        status = {"namespace": "addons", "registrations": [{"type": "kubeClient", "kubeClient": {}}]}
        await hub.patch(f"{ADDONS}/logs/status", {"status": status})

        document = await bench.cluster_when("c1", applied, what="tells of its namespace")
        assert document["status"]["managedNamespaces"][0]["clusterSet"] == "default"
        labels = (await cluster.get("/api/v1/namespaces/team-a"))["metadata"]["labels"]
        assert [value for key, value in labels.items() if key.startswith("clusterset.open-cluster-management.io/")] == ["true"]

        async def stored() -> Any:
            try:
                return (await cluster.get(SECRET))["data"]
            except NotFoundError:
                return None

        held = await until(stored, what="the add-on has its secret")
        async with await KubeClient.from_file(unpacked(held, tmp_path)) as add_on:
            told = await add_on.create(WHO_AM_I, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
        assert told["status"]["userInfo"]["username"] == "system:serviceaccount:c1:logs-agent"

        async def told_of() -> bool:
            conditions = (await hub.get(f"{ADDONS}/logs"))["status"]["conditions"]
            return {"TokenInfrastructureReady", "TokenRefreshed"} <= {each["type"] for each in conditions}

        await until(told_of, what="both sides tell of the token")  # the agent once it has stored it


def applied(document: Any) -> bool:
    wanted = document.get("status", {}).get("managedNamespaces") or [{}]
    return any(each.get("reason") == "NamespaceApplied" for each in wanted[0].get("conditions", ()))


def unpacked(contents: dict[str, str], folder: Path) -> Path:
    """The secret as files, as an add-on mounts it."""
    for name, content in contents.items():
        (folder / f"mounted-{name}").write_bytes(b64decode(content))
    document = yaml.safe_load((folder / "mounted-kubeconfig").read_text())
    assert document["users"][0]["user"] == {"tokenFile": "token"}
    document["users"][0]["user"]["tokenFile"] = "mounted-token"
    (folder / "mounted-kubeconfig").write_text(yaml.safe_dump(document))
    return folder / "mounted-kubeconfig"
