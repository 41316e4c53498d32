"""Metrics on the HTTPS door: for who may read that path, as Kubernetes has it."""

from machinery.metrics import gauge
from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_access import holder, nobody

ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
BINDING = {
    "metadata": {"name": "scraper"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:monitoring"},
    "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "scraper"}],
}


async def test_a_service_account_that_is_bound_to_the_monitoring_role_may_scrape(hub: HubUnderTest) -> None:
    hub.metrics.bind(gauge("hub_answer", "An answer."), lambda: 42)
    admin = holder(hub, await hub.admin())
    await admin.ask("POST", ACCOUNTS, {"metadata": {"name": "scraper"}})
    token = (await admin.ask("POST", f"{ACCOUNTS}/scraper/token", {"spec": {}}))[1]["status"]["token"]
    scraper = {"authorization": f"Bearer {token}"}
    assert (await nobody(hub).ask("GET", "/metrics", **scraper))[0] == 403
    assert (await admin.ask("POST", BINDINGS, BINDING))[0] == 201
    status, text = await nobody(hub).ask("GET", "/metrics", **scraper)
    assert (status, text) == (
        200,
        "# HELP muster_hub_answer An answer.\n# TYPE muster_hub_answer gauge\nmuster_hub_answer 42\n",
    )
    assert (await nobody(hub).ask("POST", "/metrics", {}, **scraper))[0] == 403


async def test_neither_an_agent_nor_nobody_may_scrape(hub: HubUnderTest) -> None:
    assert (await holder(hub, await hub.agent("edge1")).get("/metrics"))[0] == 403
    assert (await nobody(hub).get("/metrics"))[0] == 403
