"""What the charts say is what the programs do: an agent lives with the rights that it is given, and a hub answers probes."""

import asyncio
import base64
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import helm_python
import pytest
import yaml

from hollow.cluster import HollowCluster
from hollow.objects import ClusterShape
from machinery.client.rest import KubeClient, RestResource
from machinery.meta.timestamps import format_micro_time
from machinery.runtime.clock import SystemClock
from spoke.observability.event_recorder import KubeEvents
from tests.charts.rendering import CHARTS, VALUES as BOTH, environment, only, plain, pod_spec, render
from tests.charts.rights import Calls, rights_of
from tests.e2e.processes import Bench, Program, free_port, is_gone, until
from tests.e2e.test_agents import ADDONS, AUTO, SETS, applied
from tests.fakes.authority import OtherCA
from tests.programs import STDOUT, command, run

pytestmark = pytest.mark.e2e

NAMESPACE = "fleet"
HUB_VALUES = BOTH["hub"]
SECRETS, LEASES = RestResource("", "v1", "secrets"), RestResource("coordination.k8s.io", "v1", "leases")
VALUES: dict[str, Any] = {
    "clusterName": "c1",
    "bootstrap": {"furtherSecrets": ["west"]},
    "attestation": {"enabled": True},
    "addOns": {"namespaces": ["addons"]},
    "settings": {"addon_lease_check_period": "300ms", "feature_gates": {"ClusterProperty": "true"}},
}


@dataclass
class Stage:
    """A hollow cluster with the chart installed by Helm, and what the account of the chart asks there."""

    bench: Bench
    cluster: HollowCluster
    admin: KubeClient
    calls: Calls
    documents: list[dict[str, Any]]
    kubeconfig: Path = field(default=Path())

    async def token(self) -> str:
        path = RestResource("", "v1", "serviceaccounts").path("muster-muster-spoke", namespace=NAMESPACE, subresource="token")
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        return str((await self.admin.create(path, asked))["status"]["token"])

    async def as_the_account(self) -> None:
        kubeconfig = self.cluster.kubeconfig()
        kubeconfig["users"][0]["user"] = {"token": await self.token()}
        self.kubeconfig = self.bench.folder / "account.kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(kubeconfig))

    def program(self, command: str) -> Program:
        """As the pod runs it; files are where this machine has them, and an attested account is named outside of a pod."""
        settings = self.bench.folder / "spoke.yaml"
        settings.write_text(yaml.safe_dump(VALUES["settings"]))
        variables = plain(environment(self.documents)) | {
            "SPOKE_BOOTSTRAP_KUBECONFIG": str(self.bench.folder / "c1.bootstrap"),
            "SPOKE_KUBECONFIG": str(self.kubeconfig),
            "SPOKE_HUB_KUBECONFIG_DIR": str(self.bench.folder / "mirror"),
            "SPOKE_COMPONENT_NAMESPACE": NAMESPACE,
            "SPOKE_HEALTH_LISTEN": "127.0.0.1:0",
            "SPOKE_ATTESTATION_SERVICE_ACCOUNT": f"{NAMESPACE}/muster-muster-spoke",
        }
        name = f"{command}-{len(self.bench.programs)}"
        return self.bench.program(name, "spoke", command, f"--config={settings}", environment=variables)

    async def secret(self, name: str, namespace: str) -> Any:
        return (await self.admin.get(SECRETS.path(name, namespace=namespace)))["data"]


@pytest.fixture
async def stage(bench: Bench) -> AsyncIterator[Stage]:
    calls = Calls()
    calls.of(NAMESPACE, "muster-muster-spoke")
    async with (
        HollowCluster(ClusterShape("c1"), on_decision=calls.tell) as cluster,
        await KubeClient.from_document(cluster.kubeconfig()) as admin,
    ):

        def install() -> None:
            with helm_python.Config(kubeconfig_content=yaml.safe_dump(cluster.kubeconfig()), namespace=NAMESPACE) as helm:
                helm.install(str(CHARTS / "spoke"), "muster", VALUES, namespace=NAMESPACE, create_namespace=True)

        await asyncio.to_thread(install)
        stage = Stage(bench, cluster, admin, calls, render("spoke", VALUES))
        await stage.as_the_account()
        yield stage


async def attested_bootstrap(stage: Stage) -> None:
    """A credential that demands a token of the cluster, in the file that is mounted and in the Secret of a further hub."""
    bench, entry = stage.bench, stage.cluster.kubeconfig()["clusters"][0]["cluster"]
    ca = bench.folder / "c1.ca"
    ca.write_bytes(base64.b64decode(entry["certificate-authority-data"]))
    file = await bench.bootstrap("c1", "--uses", "5", "--attest-issuer", stage.cluster.url, "--attest-ca", str(ca))
    data = {"kubeconfig": base64.b64encode(file.read_bytes()).decode()}
    await stage.admin.create(SECRETS.path(namespace=NAMESPACE), {"metadata": {"name": "west"}, "data": data})


async def with_an_add_on(stage: Stage, hub: KubeClient) -> None:
    """It gets its credential, its lease is looked at, and its credential goes with it."""
    await stage.admin.create("/api/v1/namespaces", {"metadata": {"name": "team-a"}})
    lease = {"metadata": {"name": "logs"}, "spec": {"renewTime": format_micro_time(SystemClock().now())}}
    await stage.admin.create(LEASES.path(namespace="addons"), lease)
    await hub.patch(f"{SETS}/default", {"spec": {"managedNamespaces": [{"name": "team-a"}, {"name": "team-b"}]}})
    addon = {"apiVersion": "addon.open-cluster-management.io/v1beta1", "kind": "ManagedClusterAddOn"}
    await hub.create(ADDONS, {**addon, "metadata": {"name": "logs"}, "spec": {}})
    status = {
        "namespace": "addons",
        "registrations": [{"type": "kubeClient", "kubeClient": {}}],
        "healthCheck": {"mode": "Lease"},
    }
    await hub.patch(f"{ADDONS}/logs/status", {"status": status})
    await stage.bench.cluster_when("c1", applied, what="reports its namespaces")
    await until(lambda: stage.secret("logs-hub-kubeconfig", "addons"), what="the add-on has its secret")

    async def healthy() -> bool:
        conditions = (await hub.get(f"{ADDONS}/logs"))["status"].get("conditions", ())
        return any((each["type"], each["status"]) == ("Available", "True") for each in conditions)

    await until(healthy, what="the add-on is available by its lease")


async def with_one_that_stands_by(stage: Stage) -> None:
    """A second process follows the Lease. Decisions about several hubs are announced by the same adapter."""
    other = await stage.program("run").start()
    await until(
        lambda: any((asked.verb, asked.resource) == ("watch", "leases") for asked in stage.calls.allowed),
        what="the second process follows the Lease",
    )
    assert await other.stop() == 0
    async with await KubeClient.from_file(stage.kubeconfig) as account:
        await KubeEvents(account, NAMESPACE, SystemClock()).announce("HubChosen", "of several", warning=False)


async def test_every_call_of_an_agent_has_its_right_and_every_right_its_call(stage: Stage) -> None:
    bench = stage.bench
    await bench.hub(*AUTO, f"--attestation-allowed-issuers={stage.cluster.url}")
    await attested_bootstrap(stage)
    agent = await stage.program("run").start()
    await bench.available("c1")
    async with await KubeClient.from_file(bench.admin) as hub:
        await with_an_add_on(stage, hub)
        before, since = await stage.secret("logs-hub-kubeconfig", "addons"), SystemClock().now()
        await until(
            lambda: SystemClock().now() - since > timedelta(seconds=1),
            what="its certificate is older than an order, which is given to the second",
        )
        await bench.hubctl("rotate", "cluster", "c1")

        async def renewed() -> bool:
            return bool((await stage.secret("logs-hub-kubeconfig", "addons"))["tls.crt"] != before["tls.crt"])

        await until(renewed, what="the add-on has its next certificate")
        await hub.delete(f"{ADDONS}/logs")
        secret = partial(stage.secret, "logs-hub-kubeconfig", "addons")
        await until(lambda: is_gone(secret()), what="the add-on's secret went with it")
    await with_one_that_stands_by(stage)

    async def well() -> bool:
        return await (await stage.program("doctor").start()).ended() == 0

    await until(well, what="the agent has reported its state in its Lease, where doctor reads it")
    leave = await stage.program("leave").start()
    assert await leave.ended() == 0, leave.output
    assert await agent.stop() == 0

    rights = rights_of(stage.documents, NAMESPACE)
    assert (list(stage.calls.refused), [str(each) for each in stage.calls.idle(rights)]) == ([], [])


async def test_probes_and_the_test_of_the_hubs_chart_are_answered_by_a_hub(bench: Bench) -> None:
    await bench.hub()
    documents = render("hub", HUB_VALUES)
    [container] = pod_spec(documents)["containers"]
    async with aiohttp.ClientSession() as visitor:
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            assert (asked["scheme"], asked["port"]) == ("HTTPS", "https")
            async with visitor.get(f"https://127.0.0.1:{bench.https_port}{asked['path']}", ssl=False) as answer:
                assert answer.status == 200, probe
    [asking] = only(documents, "Pod")["spec"]["containers"]
    there = {"HOST": "127.0.0.1", "HTTPS": str(bench.https_port), "GRPC": str(bench.grpc_port)}
    trust = {"TRUST": str(bench.data / "trust.crt")}
    assert {each["name"] for each in asking["env"]} == {*there, *trust}
    strange = bench.folder / "strange.crt"
    strange.write_bytes(OtherCA().certificate)
    well, closed, untrusted = await asyncio.gather(
        ran(asking, there | trust),
        ran(asking, there | trust | {"GRPC": str(free_port())}),
        ran(asking, there | {"TRUST": str(strange)}),
    )
    assert well[0] == 0, well[1]
    assert "readyz check passed" in well[1]
    assert "takes connections" in well[1]
    assert closed[0] != 0
    assert "CERTIFICATE_VERIFY_FAILED" in untrusted[1]


async def ran(container: dict[str, Any], environment: dict[str, str]) -> tuple[int, str]:
    """The command of a container, here."""
    assert container["command"][0] == "python"
    arguments = container["command"][1:] + container["args"]
    ended = await command(sys.executable, *arguments, env={**os.environ, **environment}, stderr=STDOUT)
    return ended.returncode, ended.stdout


async def test_the_kubeconfig_that_a_hub_puts_into_its_secret_opens_it(bench: Bench) -> None:
    async with HollowCluster(ClusterShape("host")) as cluster, await KubeClient.from_document(cluster.kubeconfig()) as admin:
        host = bench.folder / "host.kubeconfig"
        host.write_text(yaml.safe_dump(cluster.kubeconfig()))
        flags = f"--management-cluster={host}", "--admin-kubeconfig-secret=default/hub-admin"
        await bench.hub(*flags)

        async def held() -> Any:
            return (await admin.get(SECRETS.path("hub-admin", namespace="default")))["data"]

        contents = {name: base64.b64decode(value) for name, value in (await until(held, what="the Secret is there")).items()}
        assert contents["ca.crt"] == (bench.data / "trust.crt").read_bytes()
        async with await KubeClient.from_document(yaml.safe_load(contents["kubeconfig"])) as operator:
            assert await operator.list("/apis/cluster.open-cluster-management.io/v1/managedclusters") == ()
        lost = await run("hub", "serve", f"--data-dir={bench.folder / 'lost'}", *flags)
        assert "the database is empty, but the Secret default/hub-admin has the admin kubeconfig of hub" in lost.stderr
        assert lost.returncode != 0, "a new hub would refuse every agent of the one that lost its volume"
