"""Extensions of the hub: it serves without any, and each is installed only where its settings enable it."""

import asyncio
from pathlib import Path

import aiohttp
import pytest
import yaml

from hub.api.certificates import Purpose
from hub.extensions.kube_cert_agent.authenticator import KubernetesAuthority
from machinery.client.kubeconfig import read_kubeconfig
from machinery.errors import InvalidError
from machinery.runtime.tls import client_context
from tests.fakes.inprocess_hub import hub_in_process
from tests.fakes.management import ManagementInMemory
from tests.fakes.rpc_stage import rpc_stage

CLUSTERS = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
CERT_AGENT = {"kube_cert_agent": True, "kube_cert_agent_image": "muster/hub:1", "kube_cert_agent_namespace": "muster"}


async def test_without_extensions_a_cluster_joins_beats_and_is_listed(tmp_path: Path) -> None:
    async with rpc_stage(tmp_path, extensions=()) as stage:
        agent = await stage.welcomed(await stage.enrol("edge1"))
        assert (await agent.beat(1)).sequence == 1
        admin = read_kubeconfig(stage.hub.core.certificates.admin_path)
        shown = admin.require_credential()
        context = client_context(admin.cluster.certificate_authority, shown.chain, shown.key)
        async with aiohttp.ClientSession() as session, session.get(admin.cluster.server + CLUSTERS, ssl=context) as answer:
            listed = await answer.json()
        assert [each["metadata"]["name"] for each in listed["items"]] == ["edge1"]
        assert stage.hub.operators.authenticators == ()
        assert stage.hub.core.certificates.signing.names(Purpose.LOGIN) == "hub"


async def test_no_extension_adds_anything_unless_its_settings_enable_it(tmp_path: Path) -> None:
    async with hub_in_process(tmp_path) as hub:
        assert (hub.operators.authenticators, hub.core.on_lead) == ((), [])
        assert hub.core.certificates.signing.names(Purpose.LOGIN) == "hub"
        assert not hub.core.attestation.required


async def test_the_kubernetes_ca_signs_logins_first_and_opens_the_hub_only_to_named_groups(tmp_path: Path) -> None:
    async with ManagementInMemory() as cluster:
        file = tmp_path / "cluster.kubeconfig"
        file.write_text(yaml.safe_dump(cluster.kubeconfig))
        for groups, expected in ((), 0), (("ops",), 1):
            folder = tmp_path / f"hub-{expected}"
            settings = {**CERT_AGENT, "management_cluster": str(file), "kubernetes_ca_groups": groups}
            async with hub_in_process(folder, **settings) as hub:
                assert hub.core.certificates.signing.names(Purpose.LOGIN) == "kubernetes,hub"
                own = [each for each in hub.operators.authenticators if isinstance(each, KubernetesAuthority)]
                assert len(own) == expected
                running = {task.get_name() for task in asyncio.all_tasks()}
                watched = ("managers", "deployments", "agents", "outdated pods", "cluster info")
                assert {f"hub/mirror of {each}" for each in watched} <= running
        nowhere = {**CERT_AGENT, "kube_cert_agent_namespace": None, "management_cluster": str(file)}
        with pytest.raises(InvalidError, match="kube_cert_agent_namespace, or POD_NAMESPACE"):
            async with hub_in_process(tmp_path / "nowhere", **nowhere):
                pass
