"""A real agent at a hub that is not ours: a kube-apiserver with Open Cluster Management's CRDs, rights and controllers."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from machinery.apiserver.kinds.certificates import CERTIFICATE_SIGNING_REQUEST
from machinery.apiserver.kinds.coordination import LEASE
from machinery.apiserver.kinds.events import EVENTS_V1
from tests.e2e.processes import Bench, Program, is_available, status_of, until
from tests.e2e.test_csr_driver import JOINED
from tests.e2e.test_spoke import certificate, kubernetes, says
from tests.fakes.ocm_hub import CLUSTER, OcmHub, ocm_hub

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


async def available(hub: OcmHub) -> dict[str, Any]:
    async def seen() -> Any:
        document = await hub.cluster("c1")
        return document if is_available(document) else None

    return dict(await until(seen, what="c1 is Available", within=30))


async def test_it_joins_waits_reports_renews_and_is_denied_and_deleted_like_any_agent(bench: Bench, tmp_path: Path) -> None:
    async with ocm_hub(tmp_path, lifetime=timedelta(seconds=12)) as hub:
        file = tmp_path / "ocm.bootstrap"
        file.write_bytes(hub.bootstrap_kubeconfig())
        spoke = await bench.spoke("c1", file, "--cluster-annotations=agent.open-cluster-management.io/site=b")
        await says(spoke, "request.waiting")
        (request,) = await hub.found(CERTIFICATE_SIGNING_REQUEST)
        assert (request["metadata"]["name"][:3], request["spec"]["signerName"]) == (
            "c1-",
            "kubernetes.io/kube-apiserver-client",
        )
        assert request["metadata"]["labels"] == {"open-cluster-management.io/cluster-name": "c1"}
        assert (await hub.cluster("c1"))["spec"]["hubAcceptsClient"] is False

        await hub.approve(request["metadata"]["name"])
        await says(spoke, "hub.not_accepted")
        await hub.add_on("c1", "logs")
        await hub.accept("c1")
        document = await available(hub)
        assert status_of(document, JOINED) == "True"
        assert status_of(document, "HubAcceptedManagedCluster") == "True", "the hub's own condition stays"
        assert document["metadata"]["annotations"]["agent.open-cluster-management.io/site"] == "b"

        (lease,) = [one for one in await hub.found(LEASE, "c1") if one["metadata"]["name"] == "managed-cluster-lease"]

        async def beaten() -> bool:
            now = [one for one in await hub.found(LEASE, "c1") if one["metadata"]["name"] == "managed-cluster-lease"]
            return bool(now[0]["spec"]["renewTime"] > lease["spec"]["renewTime"])

        await until(beaten, what="the lease is renewed")

        async def told() -> bool:
            return [event["reason"] for event in await hub.found(EVENTS_V1, "c1")] == ["Available"]

        await until(told, what="one Event tells of it")

        await hub.fall_silent("c1")
        await available(hub)

        serial = certificate(bench, "c1").serial
        await until(lambda: _other(bench, serial), what="the certificate is renewed without a person", within=30)
        await until(lambda: _add_on_secret(bench), what="the add-on has its kubeconfig", within=30)

        await hub.accept("c1", accepted=False)
        await until(lambda: _last_word(spoke, "hub.not_accepted"), what="the agent knows that it is denied")
        await hub.accept("c1")
        await until(lambda: _last_word(spoke, "hub.accepted"), what="the agent knows that it is accepted", within=30)

        await hub.remove(CLUSTER, "c1")
        hub.accepted.clear()
        await until(lambda: _made_again(hub), what="a deleted cluster registers again", within=60)
        assert not [asked for asked in hub.refused if asked.verb not in {"get", "list", "watch", "update", "create", "patch"}]


async def _last_word(spoke: Program, event: str) -> bool:
    """What the agent last said of its acceptance; a renewed certificate may have begun another session meanwhile."""
    told = [word for word in re.findall(r'"event": "(hub\.[a-z_]+)"', spoke.output) if "accepted" in word]
    return bool(told) and told[-1] == event


async def _other(bench: Bench, serial: int) -> bool:
    return bool(certificate(bench, "c1").serial != serial)


async def _add_on_secret(bench: Bench) -> bool:
    async with kubernetes(bench, "c1") as client:
        path = "/api/v1/namespaces/open-cluster-management-agent-addon/secrets/logs-hub-kubeconfig"
        return set((await client.get(path))["data"]) >= {"kubeconfig", "tls.crt", "tls.key"}


async def _made_again(hub: OcmHub) -> bool:
    return bool((await hub.cluster("c1"))["spec"]["hubAcceptsClient"] is False)
