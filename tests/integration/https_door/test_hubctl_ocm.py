"""hubctl import from a recorded OCM hub, and hubctl export to one."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from hub.api.managedclusters import cluster as cluster_rules
from hub.registry.managedclusters import service as clusters
from hubctl.commands.clusters.ocm import Renewal, second_agent
from hubctl.commands.clusters.ocm_inventory import differences
from hubctl.errors import DONE, FAILED, MISUSED, NOT_FOUND
from machinery.apiserver.http.listener import serve
from machinery.client.kubeconfig import ClusterEntry, write_kubeconfig
from machinery.identity import ClusterName
from machinery.runtime.tls import server_context
from tests.checks import check_results
from tests.e2e.test_documents_typed import text_of, typed
from tests.fakes.authority import OtherCA
from tests.fakes.golden_hub import LIST_OF_CLUSTERS
from tests.fakes.identity import serving_material
from tests.golden.replay import RECORDING, exchanges, recorded_objects
from tests.integration.https_door.conftest import CLUSTERS, REQUESTS, HubUnderTest, admin_of, asked_for, bearer, hub_with
from tests.integration.https_door.test_tokens import made, token_in

GROUP, SET = "cluster.open-cluster-management.io", "cluster.open-cluster-management.io/clusterset"
SETS, BINDINGS = (f"/apis/{GROUP}/v1beta2/managedcluster{each}" for each in ("sets", "setbindings"))
ADDONS = "/apis/addon.open-cluster-management.io/v1beta1/managedclusteraddons"
LEASES, LEASE = "/apis/coordination.k8s.io/v1/leases", "managed-cluster-lease"
PAGE = "docs/how-to/from-ocm.md"
TAINT = {"key": "gpu", "value": "a100", "effect": "NoSelect", "timeAdded": "2026-11-21T04:42:48Z"}
NOW = datetime(2026, 11, 21, tzinfo=UTC)
SECOND = "2026-11-21T04:40:29.617457Z"  # 20 s after the recorded renewal


def recorded(file: str) -> list[dict[str, Any]]:
    """The recorded exchanges of a file, those of all its commands."""
    entries = [json.loads(line) for line in RECORDING.with_name(file).read_text().splitlines()]
    return [each for entry in entries for each in entry.get("exchanges", [entry])]


class RecordedHub:
    """An OCM hub that answers with what was recorded, two objects a page, and refuses all but GET.

    It has both recorded clusters, a denied one, and the set, binding and taint that the recording lacks. `leases`: answers to
    reads; the last one stays.
    """

    def __init__(self) -> None:
        edges = [each for each in recorded_objects(LIST_OF_CLUSTERS) if each["metadata"]["name"].startswith("edge")]
        edge1, edge2, edge3 = (copy.deepcopy(each) for each in (*edges, edges[1]))
        edge2["metadata"]["labels"] |= {SET: "prod"}
        edge2["spec"]["taints"] = [TAINT]
        edge3["metadata"] |= {"name": "edge3", "labels": {}, "annotations": {}}
        edge3["spec"]["hubAcceptsClient"] = False
        sets = [{"metadata": {"name": name}, "spec": {}} for name in ("default", "prod")]
        binding = {"metadata": {"name": "prod", "namespace": "team"}, "spec": {"clusterSet": "prod"}}
        agent = recorded("ocm-agent.jsonl")
        seen = [line["object"] for each in agent for line in each["response"].get("lines", ())]
        addon = [each for each in seen if each["metadata"].get("name") == "demo-addon2"][-1]
        self.lists = {CLUSTERS: [edge1, edge2, edge3], SETS: sets, BINDINGS: [binding], ADDONS: [addon]}
        self.leases = [each["response"]["body"] for each in agent if LEASE in each["request"]["path"]][-2:-1]
        requested = {each["request"]["path"]: each["response"].get("body") for each in reversed(recorded("kubectl.jsonl"))}
        self.discovery = {path: requested[path] for path in ("/api", "/apis")}

    async def answer(self, request: web.Request) -> web.Response:
        path = request.path
        if path == LEASES and request.query["fieldSelector"] == f"metadata.name={LEASE}":
            return web.json_response({"items": [self.leases[0] if len(self.leases) == 1 else self.leases.pop(0)]})
        if path in self.discovery and all(f"v={each};as" in request.headers["Accept"] for each in ("v2", "v2beta1")):
            return web.json_response(self.discovery[path])
        start = int(request.query.get("continue") or 0)
        more = {"continue": str(start + 2)} if start + 2 < len(self.lists[path]) else {}
        return web.json_response({"metadata": more, "items": self.lists[path][start : start + 2]})


@asynccontextmanager
async def ocm_hub(folder: Path) -> AsyncIterator[RecordedHub]:
    """Such a hub, with `ocm.kubeconfig` in the folder."""
    hub, app, authority = RecordedHub(), web.Application(), OtherCA("ocm").authority
    app.router.add_get("/{path:.*}", hub.answer)
    listening = await serve(app, "127.0.0.1", 0, server_context(serving_material(authority)))
    entry = ClusterEntry("ocm", f"https://127.0.0.1:{listening.port}", authority.certificate)
    await asyncio.to_thread((folder / "ocm.kubeconfig").write_bytes, write_kubeconfig(entry, "token", user="reader"))
    try:
        yield hub
    finally:
        await listening.close()


async def test_import_creates_what_an_ocm_hub_has_and_changes_nothing_there(
    hub: HubUnderTest, tmp_path: Path, monkeypatch: Any
) -> None:
    admin = await admin_of(hub)
    monkeypatch.chdir(tmp_path)
    async with ocm_hub(tmp_path) as ocm:
        commands = (each.removeprefix("hubctl ").replace("3m", "9ms") for each in typed(text_of(PAGE)))
        dry, line, *others = [each for each in commands if each.startswith(("import", "export"))]
        tried = await hub.hubctl(dry)
        assert (tried.code, (await admin.get(CLUSTERS))[1]["items"]) == (DONE, []), tried.err
        assert 'add-on "demo-addon2" of namespace "edge2" created (dry run): not checked' in tried.out

        ocm.lists[CLUSTERS].append({"metadata": {"name": "open-cluster-management-x"}, "spec": {}})
        ended = await hub.hubctl(line)
        assert (ended.code, "clusters: 3 created, 1 failed" in ended.err) == (FAILED, True), ended
        assert 'error: cluster "open-cluster-management-x": ' in ended.err
        ocm.lists[CLUSTERS].pop()
        again = await hub.hubctl(line)
        assert (again.code, "clusters: 3 unchanged\n" in again.err, "created" in again.err) == (DONE, True, False), again
        assert "hubctl join edge2 -n muster-agent --apply edge2.kubeconfig" in again.out

        edge1, edge2, edge3 = (await admin.get(CLUSTERS))[1]["items"]
        taint = {name: value for name, value in TAINT.items() if name != "timeAdded"}
        assert [{**each, "timeAdded": ""} for each in edge2["spec"]["taints"]] == [{**taint, "timeAdded": ""}]
        assert (edge1["spec"].get("taints"), edge2["metadata"]["labels"][SET]) == (None, "prod"), "the hub sets its own taints"
        assert [each["spec"]["hubAcceptsClient"] for each in (edge1, edge2, edge3)] == [True, True, False]
        assert cluster_rules.ACCEPTED_ON in edge3["metadata"]["annotations"], "no rule accepts what was denied"
        assert ([each["metadata"]["name"] for each in (await admin.get(ADDONS))[1]["items"]]) == ["demo-addon2"]
        assert ([each["metadata"]["namespace"] for each in (await admin.get(BINDINGS))[1]["items"]]) == ["team"]
        for arguments, code in ((("--cluster-pattern", "edge*"), 403), (("--cluster", "edge2"), 201)):
            _, file = await made(hub, tmp_path, "--token", *arguments)
            status, answer = await bearer(hub, token_in(file)).ask("POST", REQUESTS, asked_for("edge2", "bcdfg", "edge2"))
            assert (status, "for this name alone" in str(answer)) == (code, code == 403), answer

        await admin.patch(f"{CLUSTERS}/edge2", {"spec": {"taints": None}, "metadata": {"labels": {"site": "here"}}})
        await hub.store.run(clusters.set_condition, ClusterName("edge2"), cluster_rules.AVAILABLE, "test")
        ocm.lists[CLUSTERS][1]["status"]["conditions"][2]["status"] = "True"
        second = copy.deepcopy(ocm.leases[0])
        second["spec"]["renewTime"] = SECOND
        ocm.leases.append(second)
        for row in (
            (f"{line} edge2", FAILED, 'cluster "edge2": two agents renew its lease on the OCM hub: it was renewed twice'),
            (f"{line} edge2", DONE, "leases on the OCM hub: 1 read, 0 renewed meanwhile, 0 by two agents"),
            (f"{line} edge2 --watch-leases 10ms", DONE, 'cluster "edge2" differs: spec.taints\n'),
            (line, DONE, "Available on both hubs, so that OCM's agent can stop: edge2"),
            ("accept edge2", DONE, "approved: requester system:bootstrap:"),
            (f"{line} nope", NOT_FOUND, 'no cluster "nope"'),
            *((each, DONE, "") for each in others),
            ("export", MISUSED, "--to-ocm"),
        ):
            result = await hub.hubctl(row[0])
            assert (result.code, row[2] in result.out + result.err) == (row[1], True), (row, result)


async def test_what_is_exported_is_imported_the_same_and_has_fields_of_ocm_alone(hub: HubUnderTest, tmp_path: Path) -> None:
    async with ocm_hub(tmp_path) as older:
        addons = next(each for each in older.discovery["/apis"]["items"] if each["metadata"]["name"] in ADDONS)
        addons["versions"][0]["version"] = "v1alpha1"
        older.lists[ADDONS.replace("v1beta1", "v1alpha1")] = older.lists.pop(ADDONS)
        await hub.output(f"hubctl import --from-ocm {tmp_path}/ocm.kubeconfig")
    exported = await hub.output("hubctl export --to-ocm")
    file, line = tmp_path / "inventory.yaml", f"hubctl export --to-ocm -o {tmp_path}/inventory.yaml"
    await hub.runs((line, DONE, "is written"), (line, DONE, "is written"))
    assert file.read_text() == exported
    for foreign in ("kind: ConfigMap\n", f"{exported}---\ntext\n"):
        file.write_text(foreign)
        await hub.runs((line, MISUSED, "already exists with other content"))
    await hub.runs((f"{line} --overwrite", DONE, "is written"))
    documents = list(yaml.safe_load_all(exported))
    kinds = ["ManagedClusterSet", *["ManagedCluster"] * 3, *["Namespace"] * 2]
    assert [each["kind"] for each in documents] == [*kinds, "ManagedClusterSetBinding", "ManagedClusterAddOn"]
    schemas = next(each for each in exchanges() if each.case == "openapi v3 group").response["body"]["components"]["schemas"]
    spec = schemas["io.open-cluster-management.cluster.v1.ManagedCluster"]["properties"]["spec"]["properties"]
    for each in documents:
        assert set(each) <= {"apiVersion", "kind", "metadata", "spec"}
        assert set(each["metadata"]) <= {"name", "namespace", "labels", "annotations"}
        assert each["kind"] != "ManagedCluster" or set(each["spec"]) <= set(spec)
    assert "hub.open-cluster-management.io" not in exported
    assert documents[-1]["apiVersion"] == "addon.open-cluster-management.io/v1alpha1", "as all releases of OCM take it"
    async with hub_with(tmp_path / "applied") as applied, hub_with(tmp_path / "imported") as imported:
        await applied.hubctl("apply -f -", given=exported)
        await imported.output(f"hubctl import --from-ocm {await hub.admin()}")
        for other in (applied, imported):
            assert await other.output("hubctl export --to-ocm") == exported
        chosen = list(yaml.safe_load_all(await imported.output("hubctl export --to-ocm edge2")))
        assert [each["metadata"]["name"] for each in chosen] == ["prod", "edge2", "team", "edge2", "prod", "demo-addon2"]


def test_differences_and_second_agents_are_found_in_what_is_read() -> None:
    rows: tuple[tuple[Any, Any, list[str]], ...] = (
        ({"a": 1, "b": {"c.d/e": "x"}}, {"a": 1, "b": {"c.d/e": "x", "f": 2}}, []),
        ({"a": 1, "b": {"c.d/e": "x"}}, {"b": {"c.d/e": "y"}}, ["a", 'b["c.d/e"]']),
        ({"a": False, "b": {}, "c": []}, {"c": None}, []),
        ({"t": [{"k": 1}]}, {"t": [{"k": 2}, {"k": 1, "timeAdded": "T"}]}, []),
        ({"t": [{"k": 1}]}, {"t": [{"k": 2}]}, ["t"]),
    )
    check_results(lambda wanted, here: list(differences(wanted, here)), rows)
    lone, period = Renewal(NOW, "lease", "registration"), timedelta(seconds=60)
    pairs: tuple[tuple[Renewal, bool], ...] = (
        *((lone, False), (lone._replace(at=NOW + period), False), (lone._replace(at=NOW + period / 2), True)),
        *((lone._replace(at=NOW + period, holder="x"), True), (lone._replace(at=NOW + period, writer="x"), True)),
    )
    check_results(lambda again: bool(second_agent([again, lone], period)), pairs)
