"""Hubs that are assembled in this process: several at once, with ports of their own, and with and without extensions."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
import yaml

from hub.extensions.kube_cert_agent.authority import KubernetesAuthority
from hub.serve import Hub
from machinery.client.kubeconfig import read_kubeconfig
from machinery.errors import InvalidError
from machinery.lifecycle.startup import StartError, reserved_port
from machinery.runtime.tls import client_context
from tests.checks import check_refusal_of
from tests.fakes.host_cluster import ManagementInMemory
from tests.fakes.inprocess_hub import HUB, OTHER_HUB, InProcessHub, hub_in_process
from tests.fakes.rpc_stage import rpc_stage

READY = "/readyz?verbose"


async def asked(hub: Hub, path: str) -> str:
    """What the administrator of a hub is answered, at the address and with the credential of its kubeconfig."""
    admin = read_kubeconfig(hub.core.certificates.admin_path)
    shown = admin.require_credential()
    context = client_context(admin.cluster.certificate_authority, shown.chain, shown.key)
    async with aiohttp.ClientSession() as session, session.get(admin.cluster.server + path, ssl=context) as answer:
        answer.raise_for_status()
        return await answer.text()


async def test_hubs_share_a_process_and_each_serves_on_free_ports(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
    async with hub_in_process(folders[0], leads=True) as one, hub_in_process(folders[1], hub_id=OTHER_HUB) as two:
        assert (one.core.resources.hub_id, two.core.resources.hub_id) == (HUB, OTHER_HUB)
        listening = [each.core.context.settings for each in (one, two)]
        assert len({address.port for each in listening for address in (each.grpc_listen, each.https_listen)} - {0}) == 4
        assert [each.agents.door.port for each in (one, two)] == [each.grpc_listen.port for each in listening]
        assert "[+]poststarthook/controllers ok" in await asked(one, READY)
        assert "controllers" not in await asked(two, READY)  # it does not stand for election
        assert (one.leading.leadership.term, two.leading.leadership.term) == (1, None)
        admin = [read_kubeconfig(each.core.certificates.admin_path).require_credential().chain for each in (one, two)]
        assert admin[0] != admin[1]


async def test_a_task_that_fails_stops_the_hub_with_its_error(tmp_path: Path) -> None:
    running = InProcessHub(tmp_path)
    (await running.start()).core.context.process.shutdown.failed(ValueError("broken"))
    await check_refusal_of(ValueError, running.stop(), match="broken")


async def test_a_reserved_port_can_be_listened_on_by_its_number_only() -> None:
    with reserved_port("127.0.0.1") as port:
        server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", port)
        with reserved_port("127.0.0.1") as other:
            assert other != port
        server.close()
        await server.wait_closed()
    with pytest.raises(StartError, match="can be reserved"), reserved_port("203.0.113.1"):
        pass


CLUSTERS = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
CERT_AGENT = {"kube_cert_agent": True, "kube_cert_agent_image": "muster/hub:1", "kube_cert_agent_namespace": "muster"}


async def test_without_extensions_a_cluster_joins_beats_and_is_listed(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, extensions=()) as stage:
        assert (await (await stage.welcomed(await stage.enrol("edge1"))).beat(1)).sequence == 1
        admin = read_kubeconfig(stage.hub.core.certificates.admin_path)
        shown = admin.require_credential()
        context = client_context(admin.cluster.certificate_authority, shown.chain, shown.key)
        async with aiohttp.ClientSession() as session, session.get(admin.cluster.server + CLUSTERS, ssl=context) as answer:
            listed = await answer.json()
        assert ([each["metadata"]["name"] for each in listed["items"]], stage.hub.operators.authenticators) == (["edge1"], ())
        assert stage.hub.core.resources.issuer._logins == ()


async def test_no_extension_adds_anything_unless_its_settings_enable_it(tmp_path: Path) -> None:
    async with hub_in_process(tmp_path) as hub:
        assert (hub.operators.authenticators, hub.core.on_lead) == ((), [])
        assert hub.core.resources.issuer._logins == ()
        assert not hub.core.attestation.required


async def test_the_kubernetes_ca_signs_logins_first_and_opens_the_hub_only_to_named_groups(tmp_path: Path) -> None:
    async with ManagementInMemory() as cluster:
        file = tmp_path / "cluster.kubeconfig"
        file.write_text(yaml.safe_dump(cluster.kubeconfig))
        for groups, expected in ((), 0), (("ops",), 1):
            settings = {**CERT_AGENT, "management_cluster": str(file), "kubernetes_ca_groups": groups}
            async with hub_in_process(tmp_path / f"hub-{expected}", **settings) as hub:
                assert [each.name for each in hub.core.resources.issuer._logins] == ["kubernetes"]
                assert len([each for each in hub.operators.authenticators if isinstance(each, KubernetesAuthority)]) == expected
                running = {task.get_name() for task in asyncio.all_tasks()}
                watched = ("managers", "deployments", "agents", "outdated pods", "cluster info")
                assert {f"hub/mirror of {each}" for each in watched} <= running
        nowhere = {**CERT_AGENT, "kube_cert_agent_namespace": None, "management_cluster": str(file)}
        with pytest.raises(InvalidError, match="kube_cert_agent_namespace, or POD_NAMESPACE"):
            async with hub_in_process(tmp_path / "nowhere", **nowhere):
                pass
