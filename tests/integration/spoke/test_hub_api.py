"""An agent over the Kubernetes API: what it writes into our hub's objects, how a session ends, and hubs that are not ours."""

import asyncio
import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hub.domain.change import MANAGED_CLUSTERS, Key
from hub.domain.cluster import ACCEPTED
from hub.domain.document import with_status_condition
from hub.services import addons, clusters
from hub.services.credentials import Terms, create_token
from machinery.clock import ManualClock, SystemClock
from machinery.conditions import AVAILABLE, HUB_ACCEPTED, JOINED, TRUE, UNKNOWN, Condition, find
from machinery.errors import ForbiddenError, NotFoundError
from machinery.identity import AddOnName, agent_subject
from machinery.kubeconfig import BearerToken, Credential
from machinery.pki import build_request, generate_key
from spoke.domain.addon import KUBE_SIGNER
from spoke.domain.reach import Driver
from spoke.domain.report import ClusterClaim, ClusterReport, ExternalEndpoint
from spoke.hubapi.client import ApiHubClient
from spoke.hubapi.documents import CLUSTER_UID, LEASE_NAME
from spoke.ports import ClientIdentity, Desired, Greeting, HubAddress, HubLostError, HubSession, Loss
from tests.fakes.connect_proxy import serving
from tests.fakes.hub import MemoryHub
from tests.fakes.hub_rigs import AGENT, CLUSTER, UID, ApiRig, rig_of
from tests.fakes.scripted_apiserver import ScriptedApiServer, Seen, scripted_apiserver

WITHIN = 10
GOOD = Condition(AVAILABLE, TRUE, "ManagedClusterAvailable", "fine")
REPORT = ClusterReport(
    conditions=(Condition(JOINED, TRUE, "ManagedClusterJoined", "joined"), GOOD),
    complete=True,
    capacity={"cpu": "4"},
    allocatable={"cpu": "3"},
    kubernetes_version="v1.34.2",
    claims=(ClusterClaim("id.k8s.io", "x"),),
    node_count=1,
    endpoints=(ExternalEndpoint("https://berlin", b"ca"),),
)


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[ApiRig]:
    async with rig_of("api", tmp_path) as made:
        assert isinstance(made, ApiRig)
        yield made


@asynccontextmanager
async def session(rig: ApiRig, credential: Credential | None = None) -> AsyncIterator[HubSession]:
    client = rig.client(credential or await rig.agent())
    try:
        async with client.session(Greeting(UID)) as opened:
            yield opened
    finally:
        await client.close()


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(WITHIN):
        while not (answer := await look()):  # noqa: ASYNC110 - any condition, told by nobody
            await asyncio.sleep(0.02)
    return answer


async def desired_when(opened: HubSession, condition: Callable[[Desired], bool], within: float = WITHIN) -> Desired:
    async with asyncio.timeout(within), aclosing(opened.desired()) as following:
        async for desired in following:
            if condition(desired):
                return desired
    raise AssertionError


async def stored(rig: ApiRig) -> dict[str, Any]:
    return await rig.stage.cluster(CLUSTER)


async def edited(rig: ApiRig, edit: Callable[[dict[str, Any]], None]) -> None:
    """Somebody else writes our ManagedCluster."""

    def change(tx: Any) -> None:
        old = tx.objects.get(MANAGED_CLUSTERS, Key("", CLUSTER))
        document = copy.deepcopy(dict(old.document))
        edit(document)
        clusters.put(tx, document, old, "admin")

    await rig.stage.store.run(change)


def status(document: dict[str, Any], kind: str) -> str | None:
    found = find(document.get("status", {}).get("conditions", ()), kind)
    return found.status if found else None


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "file"])
async def test_a_bearer_token_joins(rig: ApiRig, tmp_path: Path, inline: bool) -> None:  # noqa: FBT001 - a parameter
    _, token = await rig.stage.store.run(create_token, Terms(CLUSTER, None, timedelta(hours=1)), "admin")
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    client = rig.client_as(ClientIdentity(token=BearerToken(token) if inline else BearerToken(file=file)))
    made = await client.ensure_cluster(CLUSTER, AGENT, UID, endpoints=REPORT.endpoints, annotations={"not.ours": "x"})
    assert (made.created, made.accepted) == (True, False)
    document = await stored(rig)
    assert document["metadata"]["annotations"] == {CLUSTER_UID: UID}
    assert document["spec"]["managedClusterClientConfigs"] == [{"url": "https://berlin", "caBundle": "Y2E="}]
    request = build_request(agent_subject(CLUSTER, AGENT), generate_key())
    name = await client.submit_request(CLUSTER, AGENT, UID, request, duration=timedelta(hours=2))
    assert name.startswith(f"{CLUSTER}-")
    await client.close()
    assert token not in repr(client.__dict__)


async def test_a_report_is_in_the_record_and_what_others_wrote_stays(rig: ApiRig) -> None:
    credential = await rig.agent()
    await rig.stage.store.run(
        clusters.set_condition, CLUSTER, Condition(HUB_ACCEPTED, TRUE, "HubClusterAdminAccepted", "m"), "hub"
    )
    async with session(rig, credential) as opened:
        assert await opened.report(REPORT) > 0
        document = await stored(rig)
        assert [status(document, kind) for kind in (HUB_ACCEPTED, JOINED, AVAILABLE)] == [TRUE] * 3
        assert document["status"]["capacity"] == {"cpu": "4", "nodes": "1"}
        assert document["status"]["version"] == {"kubernetes": "v1.34.2"}
        assert document["spec"]["managedClusterClientConfigs"] == [{"url": "https://berlin", "caBundle": "Y2E="}]
        assert await opened.report(REPORT) == int(document["metadata"]["resourceVersion"])
        assert await stored(rig) == document, "the same report writes nothing"


async def test_reports_go_in_while_others_write_the_same_object(rig: ApiRig) -> None:
    async with session(rig) as opened:
        await opened.report(REPORT)

        async def others() -> None:
            for number in range(20):
                await edited(rig, lambda document: document["metadata"].update(labels={"n": str(number)}))  # noqa: B023

        async def ours() -> None:
            for number in range(10):
                claims = (ClusterClaim("id.k8s.io", str(number)),)
                await opened.report(ClusterReport((GOOD,), complete=True, capacity={"cpu": str(number)}, claims=claims))

        await asyncio.gather(others(), ours())
        document = await stored(rig)
        assert document["status"]["clusterClaims"] == [{"name": "id.k8s.io", "value": "9"}]
        assert document["metadata"]["labels"] == {"n": "19"}


async def test_what_a_hub_overwrote_is_set_right(rig: ApiRig) -> None:
    async with session(rig) as opened:
        await opened.report(REPORT)
        await rig.stage.store.run(clusters.set_condition, CLUSTER, Condition(AVAILABLE, UNKNOWN, "Silent", "m"), "hub")
        assert status(await stored(rig), AVAILABLE) == UNKNOWN

        async def right_again() -> bool:
            return status(await stored(rig), AVAILABLE) == TRUE

        await until(right_again)


async def test_a_change_of_availability_is_told_as_an_event(rig: ApiRig) -> None:
    async with session(rig) as opened:
        await opened.report(REPORT)
        bad = Condition(AVAILABLE, "False", "ManagedClusterKubeAPIServerUnavailable", "down")
        await opened.report(ClusterReport((bad,), complete=False))
        worse = replace(bad, message="still down")
        await opened.report(ClusterReport((worse,), complete=False))
    from hub.domain.change import EVENTS, Query  # noqa: PLC0415 - of this test alone

    found = (await rig.stage.store.read(lambda tx: tx.objects.find(EVENTS, Query(namespace=CLUSTER)))).items
    told = [one.document for one in found if one.document.get("involvedObject", {}).get("kind") == "ManagedCluster"]
    assert sorted(one["reason"] for one in told) == ["Available", "Unavailable"]


async def test_the_ca_bundle_and_annotations_of_a_known_cluster_are_brought_up_to_date(rig: ApiRig) -> None:
    credential = await rig.agent()
    await edited(
        rig, lambda one: one["spec"].update(managedClusterClientConfigs=[{"url": "https://berlin", "caBundle": "b2xk"}])
    )
    address = HubAddress(rig.server, rig.trust, Driver.CSR)
    notes = {"agent.open-cluster-management.io/site": "b"}
    client = ApiHubClient(address, ClientIdentity(credential.chain, credential.key), SystemClock(), notes)
    async with client.session(Greeting(UID)) as opened:
        await opened.report(REPORT)
    await client.close()
    document = await stored(rig)
    assert document["spec"]["managedClusterClientConfigs"] == [{"url": "https://berlin", "caBundle": "Y2E="}]
    assert document["metadata"]["annotations"] == {**notes, CLUSTER_UID: UID}
    assert document["spec"]["hubAcceptsClient"] is True


async def test_a_revoked_certificate_ends_the_session_and_says_that_it_was_revoked(rig: ApiRig) -> None:
    credential = await rig.agent()
    async with session(rig, credential) as opened:
        await opened.report(REPORT)
        await rig.revoke(credential)
        with pytest.raises(HubLostError) as lost:
            await until(lambda: opened.beat(available=True))
        assert lost.value.loss is Loss.REVOKED


async def test_a_deleted_cluster_ends_the_session(rig: ApiRig) -> None:
    async with session(rig) as opened:
        await opened.report(REPORT)

        def delete(tx: Any) -> None:
            clusters.remove(tx, tx.objects.get(MANAGED_CLUSTERS, Key("", CLUSTER)), "admin")

        await rig.stage.store.run(delete)
        async with asyncio.timeout(WITHIN):
            ended = await opened.ended()
        assert isinstance(ended, HubLostError)
        assert ended.loss in (Loss.FORGOTTEN, Loss.UNAUTHENTICATED)


async def test_a_denied_cluster_waits_and_its_add_ons_are_not_taken_for_gone(rig: ApiRig) -> None:
    credential = await rig.agent()
    await _add_on(rig, "logs")
    async with session(rig, credential) as opened:
        known = await desired_when(opened, lambda one: one.addons_known)
        assert [addon.name for addon in known.addons] == ["logs"]
        await rig.accept(accepted=False)
        await desired_when(opened, lambda one: not one.accepted)
    async with session(rig, credential) as opened:
        assert not (await desired_when(opened, lambda one: not one.accepted)).addons_known
        await rig.accept(accepted=True)
        await edited(rig, lambda one: one.update(with_status_condition(one, ACCEPTED, datetime.now(UTC))))  # as the leader does
        assert (await desired_when(opened, lambda one: one.accepted and one.addons_known)).addons == known.addons


async def test_add_ons_are_told_with_their_registrations_until_they_are_gone(rig: ApiRig) -> None:
    credential = await rig.agent()
    async with session(rig, credential) as opened:
        assert (await desired_when(opened, lambda one: one.addons_known)).addons == ()
        await _add_on(rig, "logs")
        (addon,) = (await desired_when(opened, lambda one: bool(one.addons))).addons
        assert [entry.signer_name for entry in addon.registrations] == [KUBE_SIGNER]
        condition = Condition("Available", TRUE, "r", "m")
        assert await opened.report_addon(AddOnName("logs"), (condition,)) > 0
        with pytest.raises(NotFoundError):
            await opened.report_addon(AddOnName("other"), (condition,))
        found = await rig.stage.store.read(lambda tx: addons.find(tx, CLUSTER, AddOnName("logs")))
        assert status(dict(found.document), "Available") == TRUE
        await rig.stage.store.run(lambda tx: addons.remove(tx, addons.find(tx, CLUSTER, AddOnName("logs")), "admin"))
        await desired_when(opened, lambda one: not one.addons)


async def _add_on(rig: ApiRig, name: str) -> None:
    document = {
        "metadata": {"name": name, "namespace": CLUSTER},
        "spec": {},
        "status": {"registrations": [{"type": "kubeClient", "kubeClient": {}}]},
    }
    await rig.stage.store.run(addons.put, document, None, "admin")


async def test_a_name_that_somebody_else_took_is_not_ours(rig: ApiRig) -> None:
    client = rig.client(await rig.bootstrap())
    await client.ensure_cluster(CLUSTER, AGENT, UID, endpoints=(), annotations={})
    first, second = (build_request(agent_subject(CLUSTER, AGENT), generate_key()) for _ in range(2))
    names = [await client.submit_request(CLUSTER, AGENT, UID, each, duration=None) for each in (first, second, first)]
    assert names[0] == names[2] != names[1]
    await client.close()


# --- hubs that are not ours


def refusal(code: int, reason: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason}
    return web.json_response(body, status=code)


class OcmHub:
    """A hub that lets an agent see nothing until it is accepted, as OCM's does."""

    def __init__(self, server: ScriptedApiServer, authority: MemoryHub) -> None:
        self.server = server
        self._authority = authority
        self.accepted = False
        self.cluster: dict[str, Any] = {
            "apiVersion": "cluster.open-cluster-management.io/v1",
            "kind": "ManagedCluster",
            "metadata": {"name": CLUSTER, "uid": "u", "resourceVersion": "1"},
            "spec": {"hubAcceptsClient": True, "leaseDurationSeconds": 60},
        }
        self.lease: dict[str, Any] | None = None
        self.conflicts = 0
        server.answer = self.answer

    async def answer(self, seen: Seen) -> web.StreamResponse:
        if seen.path == "/version":
            return web.json_response({"gitVersion": "v1.34.2"})
        if not self.accepted:
            return refusal(403, "Forbidden")
        if "/leases/" in seen.path:
            return await self._lease(seen)
        if seen.path.endswith("/managedclusters"):
            items = {"items": [self.cluster], "metadata": {"resourceVersion": "1"}}
            return web.json_response({"kind": "ManagedClusterList", **items})
        if "/addon.open" in seen.path:
            return refusal(404, "NotFound")
        return web.json_response(self.cluster)

    async def _lease(self, seen: Seen) -> web.StreamResponse:
        if self.lease is None:
            return refusal(404, "NotFound")
        if seen.method == "PUT" and self.conflicts:
            self.conflicts -= 1
            return refusal(409, "Conflict")
        return web.json_response(self.lease)

    def client(self, *, lifetime: timedelta = timedelta(hours=1)) -> ApiHubClient:
        credential = self._authority.credential(agent_subject(CLUSTER, AGENT), lifetime=lifetime)
        address = HubAddress(self.server.url, self._authority.authority.certificate, Driver.CSR)
        return ApiHubClient(address, ClientIdentity(credential.chain, credential.key), SystemClock())


@asynccontextmanager
async def ocm_hub(folder: Path) -> AsyncIterator[tuple[OcmHub, ApiHubClient]]:
    authority = MemoryHub(SystemClock())
    async with scripted_apiserver(tls=serving(authority.authority, folder)) as server:
        hub = OcmHub(server, authority)
        client = hub.client()
        try:
            yield hub, client
        finally:
            await client.close()


async def test_a_hub_that_shows_nothing_before_acceptance_is_waited_for(tmp_path: Path) -> None:
    async with ocm_hub(tmp_path) as (hub, client), client.session(Greeting(UID)) as opened:
        assert not (await desired_when(opened, lambda _: True)).accepted
        hub.accepted = True
        desired = await desired_when(opened, lambda one: one.accepted and one.addons_known)
        assert desired.addons == (), "this hub serves no add-ons"


async def test_a_session_ends_with_its_certificate_whatever_stays_open(tmp_path: Path) -> None:
    async with ocm_hub(tmp_path) as (hub, _):
        client = hub.client(lifetime=timedelta(seconds=2))
        async with client.session(Greeting(UID)) as opened, asyncio.timeout(WITHIN):
            ended = await opened.ended()
        await client.close()
        assert isinstance(ended, HubLostError)
        assert ended.loss is Loss.UNAUTHENTICATED


async def test_a_cluster_that_is_deleted_at_such_a_hub_is_forgotten(tmp_path: Path) -> None:
    async with ocm_hub(tmp_path) as (hub, client):
        hub.accepted = True

        async def stream(_seen: Seen, send: Any) -> None:
            last = {**hub.cluster, "metadata": {**hub.cluster["metadata"], "resourceVersion": "2"}}
            await send({"type": "DELETED", "object": last})
            await asyncio.Event().wait()

        hub.server.stream = stream
        async with client.session(Greeting(UID)) as opened, asyncio.timeout(WITHIN):
            ended = await opened.ended()
        assert isinstance(ended, HubLostError)
        assert ended.loss is Loss.FORGOTTEN


async def test_a_hub_that_shows_nothing_any_more_has_denied_us(tmp_path: Path) -> None:
    async with ocm_hub(tmp_path) as (hub, client):
        hub.accepted = True
        async with client.session(Greeting(UID)) as opened:
            await desired_when(opened, lambda one: one.accepted and one.addons_known)
            hub.accepted = False
            beat = asyncio.ensure_future(opened.beat(available=True))
            await desired_when(opened, lambda one: not one.accepted)
            hub.accepted, hub.lease = True, {"metadata": {"resourceVersion": "1"}, "spec": {}}
            await desired_when(opened, lambda one: one.accepted, within=30)
            async with asyncio.timeout(WITHIN):
                await beat


async def test_a_lease_that_the_hub_is_yet_to_make_is_waited_for_and_conflicts_are_tried_again(tmp_path: Path) -> None:
    async with ocm_hub(tmp_path) as (hub, client):
        hub.accepted = True
        async with client.session(Greeting(UID)) as opened:
            beat = asyncio.ensure_future(opened.beat(available=True))
            await hub.server.until(lambda: any("/leases/" in seen.path for seen in hub.server.seen))
            hub.conflicts = 2
            hub.lease = {"metadata": {"name": LEASE_NAME, "resourceVersion": "1"}, "spec": {"holderIdentity": LEASE_NAME}}
            async with asyncio.timeout(WITHIN):
                await beat
        assert not hub.conflicts
        assert {seen.method for seen in hub.server.seen if "/leases/" in seen.path} == {"GET", "PUT"}, "it is never made by us"


async def test_a_watch_that_the_hub_forgot_is_listed_anew_and_none_is_missed() -> None:
    async with scripted_apiserver() as server:
        request: dict[str, Any] = {"metadata": {"name": "c1-x", "resourceVersion": "5"}, "spec": {}, "status": {}}
        denied = {"conditions": [{"type": "Denied", "status": "True", "reason": "r", "message": "no"}]}
        rounds: list[str] = []

        async def answer(seen: Seen) -> web.StreamResponse:
            if seen.path.endswith("/c1-x"):
                return web.json_response(request)
            return web.json_response({"items": [request], "metadata": {"resourceVersion": "5"}})

        async def stream(seen: Seen, send: Any) -> None:
            rounds.append(seen.query["resourceVersion"])
            request["status"] = denied  # while nobody watched
            gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            await send({"type": "ERROR", "object": gone})

        server.answer, server.stream = answer, stream
        client = ApiHubClient(
            HubAddress(server.url, b"", Driver.CSR), ClientIdentity(token=BearerToken("opaque")), SystemClock()
        )
        async with asyncio.timeout(WITHIN):
            states = [state.state async for state in client.follow_request("c1-x")]
        await client.close()
        assert (states, rounds) == (["pending", "denied"], ["5"])


async def test_a_bootstrap_credential_that_sees_nothing_may_still_make_its_cluster() -> None:
    async with scripted_apiserver() as server:
        codes = {"GET": (403, "Forbidden"), "POST": (409, "AlreadyExists")}

        async def answer(seen: Seen) -> web.StreamResponse:
            return refusal(*codes[seen.method])

        server.answer = answer
        client = ApiHubClient(
            HubAddress(server.url, b"", Driver.CSR), ClientIdentity(token=BearerToken("opaque")), SystemClock()
        )
        assert not (await client.ensure_cluster(CLUSTER, AGENT, UID, endpoints=(), annotations={})).created
        codes["POST"] = (403, "Forbidden")
        with pytest.raises(ForbiddenError):
            await client.ensure_cluster(CLUSTER, AGENT, UID, endpoints=(), annotations={})
        await client.close()


async def test_the_hubs_time_is_learned_from_its_answers() -> None:
    async with scripted_apiserver() as server:
        clock = ManualClock()  # of another year
        address = HubAddress(server.url, b"", Driver.CSR)
        client = ApiHubClient(address, ClientIdentity(token=BearerToken("opaque")), clock)
        assert abs((await client.info()).time - SystemClock().now()) < timedelta(minutes=1)
        await client.close()
