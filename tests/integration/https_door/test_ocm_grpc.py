"""The door of OCM's agents with the driver grpc: an agent's sequences as they were observed, on real sockets."""

import asyncio
import json
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from grpc import aio

from hub.api.certificatesigningrequests import USAGES
from hub.api.liveness import Beat
from hub.api.managedclusters.cluster import SILENT
from hub.extensions import ocm_grpc
from hub.extensions.ocm_grpc import cloudevents, service
from hub.extensions.ocm_grpc.api import ApiCaller
from hub.extensions.ocm_grpc.cloudevents import EVENTS, GRPC_SIGNER, OLD_ADDONS, SERVICE, TOKENS, DataType
from hub.extensions.ocm_grpc.subscriptions import Subscription
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as managed_clusters
from machinery import pki
from machinery.client import kubeconfig
from machinery.errors import InvalidError, UnavailableError
from machinery.identity import CLUSTER_LABEL, ClusterName
from machinery.meta.objects import Key
from machinery.runtime.clock import SystemClock
from tests.checks import awaited_refusal, check_refusal_of, present
from tests.fakes.inprocess_hub import ANY_PORT
from tests.fakes.rpc_stage import csr
from tests.fakes.stage import until
from tests.fakes.virtual_time import in_virtual_time
from tests.integration.https_door.conftest import HubUnderTest, admin_of, holder, hub_with
from tests.integration.https_door.test_clusteradm import get_token

NAME, AGENT = "edge1", "agent1"
CLUSTER_KIND = {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"}
SPEC_AND_STATUS: Mapping[str, Any] = {"spec": {"hubAcceptsClient": False}, "status": {"conditions": None, "version": {}}}
NEW_CLUSTER = {**CLUSTER_KIND, "metadata": {"name": NAME}, **SPEC_AND_STATUS}
TRUE = {"status": "True", "reason": "Tested", "message": "", "lastTransitionTime": "2026-11-01T00:00:00Z"}
STEADY = cloudevents.CLUSTERS, cloudevents.REQUESTS, cloudevents.LEASES, cloudevents.ADDONS
CLUSTERS, REQUESTS, LEASES, ADDONS = STEADY
CREATE, UPDATE, STATUS, RESYNC = "spec.create_request", "spec.update_request", "status.update_request", "spec.resync_request"
ADDON_PATH = f"/apis/addon.open-cluster-management.io/v1beta1/namespaces/{NAME}/managedclusteraddons"
INVALID, DENIED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED
UNKNOWN, TOO_LARGE = "unknown", grpc.StatusCode.RESOURCE_EXHAUSTED
ENDED = "the credential or its rights have ended"
ENDS = {
    "denial": ENDED,
    "revocation": ENDED,
    "drain": "this replica of the hub is drained",
    "stop": "this hub is shutting down",
}
UNAVAILABLE, STRANGER = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED


class Seen(NamedTuple):
    action: str
    uid: str
    document: Any  # None: a deletion


@dataclass
class Stream:
    data_type: DataType
    call: Any

    async def event(self) -> Seen:
        """The next event, which has the form that the agent needs."""
        async with asyncio.timeout(20):
            while True:
                event = await self.call.read()
                assert event is not aio.EOF
                if event.type == cloudevents.HEARTBEAT:
                    continue
                assert event.type.startswith(f"{self.data_type.name}."), event.type
                texts = {name: value.ce_string for name, value in event.attributes.items()}
                assert (event.spec_version, texts["ce-clustername"]) == ("1.0", NAME)
                document = None if "ce-deletiontimestamp" in texts else json.loads(event.binary_data)
                if document is not None:
                    assert texts["contenttype"] == "application/json"
                    assert "managedFields" not in document["metadata"]
                    if self.data_type is not TOKENS:
                        assert int(texts["ce-resourceversion"]) == int(document["metadata"]["resourceVersion"]) > 0
                        assert texts["ce-resourceid"] == document["metadata"]["uid"] != ""
                return Seen(event.type.removeprefix(f"{self.data_type.name}."), texts["ce-resourceid"], document)

    async def until(self, wanted: Callable[[Seen], Any]) -> Seen:
        while not wanted(seen := await self.event()):
            pass
        return seen

    async def end(self, why: str = "") -> grpc.StatusCode:
        """The status with which the hub ends the stream, for this reason."""
        ended = present(await awaited_refusal(aio.AioRpcError, self.until(lambda _seen: False)))
        assert why in (ended.details() or ""), ended
        return ended.code()


class Agent:
    """The calls of OCM's agent."""

    def __init__(self, hub: HubUnderTest, pair: tuple[bytes, bytes] | None = None, token: str = "", **metadata: str) -> None:
        chain, key = pair or (None, None)
        credentials = grpc.ssl_channel_credentials(hub.issuer.trust_bundle, key, chain)
        address = str(hub.hub.core.context.settings.ocm_grpc_listen)  # type: ignore[attr-defined]
        self.channel = aio.secure_channel(address, credentials, (("grpc.use_local_subchannel_pool", 1),))
        self._metadata = tuple(metadata.items()) + ((("authorization", f"Bearer {token}"),) if token else ())
        self._publish: Any = self.channel.unary_unary(f"/{SERVICE}/Publish")
        self._subscribe: Any = self.channel.unary_stream(f"/{SERVICE}/Subscribe", None, cloudevents.CloudEvent.FromString)

    async def send(self, raw: bytes) -> None:
        assert await self._publish(raw, metadata=self._metadata) == b""

    async def publish(self, data_type: DataType, action: str, body: Any, cluster: str = NAME) -> None:
        await self.send(encoded(type=f"{data_type.name}.{action}", cluster=cluster, data=json.dumps(body).encode()))

    async def error(self, data_type: DataType, action: str, body: Any) -> str:
        """The reason of the Kubernetes error that a Publish ends with, as the agent reads it."""
        caught = present(await awaited_refusal(aio.AioRpcError, self.publish(data_type, action, body)))
        assert caught.code() is grpc.StatusCode.FAILED_PRECONDITION
        return str(json.loads(caught.details() or "")["ErrStatus"]["reason"])

    async def open(self, data_type: DataType, cluster: str = NAME) -> Stream:
        """Opens a stream and waits for its header."""
        asked = cloudevents.SubscriptionRequest(cluster_name=cluster, data_type=data_type.name).SerializeToString()
        call = self._subscribe(asked, metadata=self._metadata)
        async with asyncio.timeout(20):
            headers = [name for name, _value in await call.initial_metadata()]
        if headers.count("subscription-id") != 1:
            raise aio.AioRpcError(await call.code(), aio.Metadata(), aio.Metadata(), await call.details())
        return Stream(data_type, call)

    async def subscribe(self, data_type: DataType, cluster: str = NAME, held: Mapping[str, int] | None = None) -> Stream:
        """Opens a stream and asks for a resync. `held`: versions of the agent's objects by uid."""
        stream = await self.open(data_type, cluster)
        versions = [{"resourceID": uid, "resourceVersion": version} for uid, version in (held or {}).items()]
        await self.publish(data_type, RESYNC, {"resourceVersions": versions})
        return stream


def encoded(*, type: str, cluster: str | None = NAME, data: bytes = b"{}", text: str = "", **fields: Any) -> bytes:  # noqa: A002
    event = cloudevents.CloudEvent(id="1", source=NAME, spec_version=fields.get("version", "1.0"), type=type)
    for name, value in {"contenttype": "application/json", **fields.get("attributes", {})}.items():
        event.attributes[name].ce_string = value
    if cluster is not None:
        event.attributes["ce-clustername"].ce_string = cluster
    if text:
        event.text_data = text
    else:
        event.binary_data = data
    return bytes(cloudevents.PublishRequest(event=event).SerializeToString())


def pair_of(path: Path) -> tuple[bytes, bytes]:
    credential: Any = kubeconfig.read_kubeconfig(path).require_credential()
    return credential.chain, credential.key


def request_of(name: str, key: bytes) -> dict[str, Any]:
    spec = {"request": b64encode(csr(NAME, AGENT, key)).decode(), "signerName": GRPC_SIGNER, "usages": list(USAGES)}
    kind = {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
    return {**kind, "metadata": {"name": name, "labels": {CLUSTER_LABEL: NAME}}, "spec": spec, "status": {}}


def beat(lease: Any) -> dict[str, Any]:
    return {**lease, "spec": {**lease["spec"], "renewTime": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"}}


def is_issued(seen: Seen, name: str) -> bool:
    return seen.document["metadata"]["name"] == name and "certificate" in seen.document["status"]


def has_condition(seen: Seen, kind: str) -> bool:
    conditions = (seen.document or {}).get("status", {}).get("conditions") or ()
    return any((each["type"], each["status"]) == (kind, "True") for each in conditions)


async def until_permitted(publish: Callable[[], Awaitable[None]]) -> None:
    """Publishes until the hub has read its newest objects and roles."""
    async with asyncio.timeout(20):
        while True:
            try:
                return await publish()
            except aio.AioRpcError:
                continue


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubUnderTest]:
    async with hub_with(tmp_path, ocm_grpc_listen=ANY_PORT) as running:
        yield running


async def joined(hub: HubUnderTest, *, accepted: bool = True) -> Agent:
    """The agent of a cluster, with its certificate."""
    await hub.join(NAME)
    if accepted:
        await hub.accept(NAME)
    return Agent(hub, pair_of(await hub.agent(NAME)))


async def test_an_agent_joins_by_token_and_rotates_its_certificate(tmp_path: Path) -> None:
    async with hub_with(tmp_path, ocm_grpc_listen=ANY_PORT, leads=True, clusteradm=True) as hub:
        joining, key = Agent(hub, token=await get_token(await admin_of(hub))), pki.generate_key()
        clusters, requests = [await joining.subscribe(each) for each in (CLUSTERS, REQUESTS)]
        assert await joining.error(REQUESTS, CREATE, request_of("early", key)) == "NotFound", "its cluster is not there yet"
        await joining.publish(CLUSTERS, CREATE, NEW_CLUSTER)
        assert (await clusters.event()).document["spec"]["leaseDurationSeconds"] == 60
        assert await joining.error(CLUSTERS, CREATE, NEW_CLUSTER) == "AlreadyExists"
        await joining.publish(REQUESTS, CREATE, request_of("edge1-abcde", key))
        first = await requests.event()
        assert (first.document["metadata"]["name"], first.document["spec"]["signerName"]) == ("edge1-abcde", GRPC_SIGNER)
        assert await hub.output("hubctl accept edge1 --skip-approve") + await hub.output(
            "hubctl certificate approve edge1-abcde"
        )
        issued = await requests.until(lambda seen: seen.document["status"].get("certificate"))
        assert (issued.uid, has_condition(issued, "Approved")) == (first.uid, True)
        chain = b64decode(issued.document["status"]["certificate"])
        named = {f"system:open-cluster-management:{each}" for each in (NAME, "managed-clusters")}
        subject = pki.parse_certificate(chain).subject
        assert (subject.common_name, set(subject.organizations)) == (f"system:open-cluster-management:{NAME}:{AGENT}", named)

        agent, fresh = Agent(hub, (chain, key)), pki.generate_key()
        streams = {each: await agent.subscribe(each) for each in STEADY}
        await streams[CLUSTERS].until(lambda seen: has_condition(seen, "HubAcceptedManagedCluster"))
        await agent.publish(REQUESTS, CREATE, request_of("edge1-fghij", fresh))
        renewed = await streams[REQUESTS].until(lambda seen: is_issued(seen, "edge1-fghij"))
        rotated = Agent(hub, (b64decode(renewed.document["status"]["certificate"]), fresh))
        await rotated.publish(LEASES, UPDATE, beat((await streams[LEASES].event()).document))


async def test_a_certificate_request_that_is_signed_at_once_is_sent_after_the_answer(tmp_path: Path) -> None:
    async with hub_with(tmp_path, ocm_grpc_listen=ANY_PORT, leads=True, auto_approve=("*",)) as hub:
        path = tmp_path / "bootstrap"
        await hub.output(f"hubctl create bootstrap-kubeconfig --cluster {NAME} --allow-loopback -o {path}")
        agent, key = Agent(hub, pair_of(path)), pki.generate_key()
        requests, loop = await agent.subscribe(REQUESTS), asyncio.get_running_loop()
        await agent.publish(CLUSTERS, CREATE, NEW_CLUSTER)
        await agent.publish(REQUESTS, CREATE, request_of("edge1-abcde", key))
        answered = loop.time()
        seen = await requests.event()
        assert loop.time() - answered > 0.1, "an agent that gets the event before the answer discards the certificate"
        assert is_issued(seen, "edge1-abcde") or await requests.until(lambda seen: is_issued(seen, "edge1-abcde"))


async def test_an_agent_beats_and_reports(hub: HubUnderTest) -> None:
    agent = await joined(hub)
    streams = {each: await agent.subscribe(each) for each in STEADY}
    await until(lambda: not any(pool.snapshot()["taken"] for pool in hub.access.limits.pools.values()))  # streams hold none
    lease, former = (await streams[LEASES].event()).document, []
    for _ in range(2):
        former.append(lease)
        await agent.publish(LEASES, UPDATE, beat(lease))
        lease = (await streams[LEASES].until(lambda seen: seen.document not in former)).document
    assert await agent.error(LEASES, UPDATE, beat(former[1])) == "Conflict"
    assert (await streams[LEASES].event()).document == lease, "an agent with an outdated Lease gets the current one"

    conditions = [{"type": f"ManagedCluster{each}", **TRUE} for each in ("Joined", "ConditionAvailable")]
    status = {"conditions": conditions, "version": {"kubernetes": "v1.36.0"}, "capacity": {"cpu": "4"}}

    async def report() -> None:
        shown = (await streams[CLUSTERS].event()).document
        await agent.publish(CLUSTERS, STATUS, {**shown, "status": {**shown.get("status", {}), **status}})

    await until_permitted(report)  # the beat may have changed the cluster meanwhile
    echo = await streams[CLUSTERS].until(lambda seen: has_condition(seen, "ManagedClusterConditionAvailable"))
    assert {name: echo.document["status"][name] for name in ("version", "capacity")}.items() <= status.items()
    moment = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}.000000Z"
    note: dict[str, Any] = {"apiVersion": "events.k8s.io/v1", "kind": "Event", "reason": "Available", "action": "Available"}
    note |= {"metadata": {"name": "edge1.17", "namespace": NAME}, "type": "Normal", "deprecatedSource": {}, "note": "up"}
    note |= {"eventTime": moment, "reportingController": "klusterlet-agent", "deprecatedFirstTimestamp": None}
    note |= {"reportingInstance": AGENT, "regarding": {"kind": "ManagedCluster", "name": NAME, "namespace": NAME}}
    await agent.publish(EVENTS, CREATE, note)
    await agent.publish(EVENTS, UPDATE, {**note, "series": {"count": 2, "lastObservedTime": moment}})
    stored = await (await admin_of(hub)).get(f"/apis/events.k8s.io/v1/namespaces/{NAME}/events/edge1.17")
    assert (stored[0], stored[1]["series"]["count"]) == (200, 2)


@pytest.mark.parametrize(("how", "why"), ENDS.items())
async def test_streams_open_before_acceptance_and_end_with_unavailable_when_rights_end(
    tmp_path: Path, how: str, why: str
) -> None:
    async with hub_with(tmp_path, ocm_grpc_listen=ANY_PORT, shutdown_grace=timedelta(seconds=10)) as hub:
        agent = await joined(hub, accepted=False)
        streams = {each: await agent.subscribe(each) for each in STEADY}
        assert not (await streams[CLUSTERS].event()).document["spec"]["hubAcceptsClient"]
        renewal = {"metadata": {"name": "managed-cluster-lease", "namespace": NAME}}
        refused = present(await awaited_refusal(aio.AioRpcError, agent.publish(LEASES, UPDATE, renewal)))
        assert refused.code() is DENIED
        await hub.accept(NAME)
        assert (await streams[LEASES].event()).document["metadata"]["name"] == "managed-cluster-lease"
        await hub.store.run(addons.put, {"metadata": {"name": "work", "namespace": NAME}}, None, "test")
        assert (await streams[ADDONS].event()).document["metadata"]["name"] == "work"
        if how == "denial":
            await hub.accept(NAME, accepted=False)
        elif how == "revocation":
            await hub.revoke(hub.folder / f"agent-{NAME}.kubeconfig")
        elif how == "drain":
            await hub.output("hubctl drain replica here --force")
        stopping = asyncio.create_task(hub.stop()) if how == "stop" else None
        assert {await each.end(why) for each in streams.values()} == {UNAVAILABLE}
        if stopping is not None:
            await stopping
        again = Agent(hub, pair_of(hub.folder / f"agent-{NAME}.kubeconfig"))
        if how == "denial":
            waiting = {each: await again.subscribe(each) for each in STEADY}
            assert not (await waiting[CLUSTERS].event()).document["spec"]["hubAcceptsClient"]
            return
        refused = present(await awaited_refusal(aio.AioRpcError, again.subscribe(CLUSTERS)))
        assert refused.code() is (STRANGER if how == "revocation" else UNAVAILABLE)


class StandingClock(SystemClock):
    at: datetime | None = None

    def now(self) -> datetime:
        return self.at or super().now()


async def test_streams_end_with_unavailable_with_their_certificate_and_at_the_age_of_their_connection(tmp_path: Path) -> None:
    clock = StandingClock()
    young = {"connection_age": timedelta(seconds=2), "connection_age_grace": timedelta(seconds=0.5)}
    async with hub_with(tmp_path / "a", ocm_grpc_listen=ANY_PORT, **young) as hub:
        assert await (await (await joined(hub)).subscribe(LEASES)).end() is UNAVAILABLE
    async with hub_with(tmp_path / "b", ocm_grpc_listen=ANY_PORT, clock=clock) as hub:
        agent = await joined(hub)
        chain, _key = pair_of(hub.folder / f"agent-{NAME}.kubeconfig")
        ends = pki.parse_certificate(chain).not_after
        clock.at = ends - timedelta(seconds=0.5)  # at the begin of each watch
        assert await (await agent.open(CLUSTERS)).end(ENDED) is UNAVAILABLE
        clock.at = ends + timedelta(seconds=1)
        assert present(await awaited_refusal(aio.AioRpcError, agent.open(CLUSTERS))).code() is STRANGER


async def test_reports_of_an_agent_that_has_not_renewed_its_lease_leave_the_cluster_unknown(hub: HubUnderTest) -> None:
    agent, operator = await joined(hub), await admin_of(hub)
    owner, cluster = holder(hub, hub.folder / f"agent-{NAME}.kubeconfig"), ClusterName(NAME)
    path, renewals = f"{CLUSTERS.path}/{NAME}", f"{LEASES.collection(cluster)}/managed-cluster-lease"

    def reported(document: Any, status: str) -> Any:
        condition = {"type": "ManagedClusterConditionAvailable", **TRUE, "status": status}
        return {**document, "status": {**document.get("status", {}), "conditions": [condition]}}

    async def available() -> str:
        conditions = (await operator.get(path))[1]["status"]["conditions"]
        return next(str(each["status"]) for each in conditions if each["type"] == "ManagedClusterConditionAvailable")

    for driver, verdict in (("grpc", "True"), ("csr", "False")):
        await hub.store.run(lambda tx: tx.heartbeats.forget(cluster))
        await hub.store.run(lambda tx: tx.heartbeats.store([Beat(cluster, timedelta(hours=1), available=None)]))
        await hub.store.run(managed_clusters.set_condition, cluster, SILENT, "test")
        for _ in range(2):
            shown = (await operator.get(path))[1]
            if driver == "grpc":
                await agent.publish(CLUSTERS, STATUS, reported(shown, verdict))
            else:
                assert (await owner.ask("PUT", f"{path}/status", reported(shown, verdict)))[0] == 200
            assert await available() == "Unknown"
        lease = (await operator.get(renewals))[1]
        if driver == "grpc":
            await agent.publish(LEASES, UPDATE, beat(lease))
        else:
            assert (await owner.ask("PUT", renewals, beat(lease)))[0] == 200
        assert await available() == verdict


async def test_an_add_on_is_followed_in_both_versions_and_forgotten_with_its_deletion(hub: HubUnderTest) -> None:
    agent, admin = await joined(hub), await admin_of(hub)
    new, old = [await agent.subscribe(each) for each in (ADDONS, OLD_ADDONS)]
    registered = {"status": {"registrations": [{"type": "kubeClient", "kubeClient": {"driver": "csr"}}]}}
    await hub.store.run(addons.put, {"metadata": {"name": "work", "namespace": NAME}, **registered}, None, "test")
    made, made_old = await new.event(), await old.event()
    assert (made.action, made.document["apiVersion"]) == (CREATE, "addon.open-cluster-management.io/v1beta1")
    assert made_old.document["status"]["registrations"][0]["signerName"] == "kubernetes.io/kube-apiserver-client"
    by_token = [{"type": "kubeClient", "kubeClient": {"driver": "token"}}]
    status = {"registrations": by_token, "conditions": [{"type": "Available", **TRUE}]}
    await agent.publish(ADDONS, STATUS, {**made.document, "status": {**made.document["status"], **status}})
    assert has_condition(await new.event(), "Available")
    await hub.store.run(addons.update_token, Key(NAME, "work"), "test")
    await new.until(lambda seen: has_condition(seen, "TokenInfrastructureReady"))
    tokens = await agent.subscribe(TOKENS)
    spec = {"audiences": None, "expirationSeconds": 3600, "boundObjectRef": None}
    own, other = [{"metadata": {"name": one, "namespace": NAME, "uid": "asked"}, "spec": spec} for one in ("work-agent", "it")]
    await until_permitted(lambda: agent.publish(TOKENS, CREATE, own))
    given = (await tokens.event()).document
    assert (given["metadata"]["uid"], given["status"]["token"].count(".")) == ("asked", 2)
    await check_refusal_of(aio.AioRpcError, agent.publish(TOKENS, CREATE, other), match="access denied")
    assert (await admin.ask("DELETE", f"{ADDON_PATH}/work"))[0] == 200
    assert (await new.until(lambda seen: seen.document is None)).uid == made.uid
    again = await agent.subscribe(ADDONS, held={made.uid: 1, "never-was": 7})
    assert {(await again.event()).uid, (await again.event()).uid} == {made.uid, "never-was"}


async def test_a_stream_sends_no_older_version_and_heartbeats_only_while_idle(hub: HubUnderTest) -> None:
    caller = ApiCaller(hub.operators.door.server, asyncio.Transport(), {}, lambda: None)
    subscription = Subscription(caller, LEASES, ClusterName(NAME), SystemClock())
    for version in (7, 5, 9):
        subscription.push(UPDATE, {"metadata": {"uid": "a", "resourceVersion": str(version)}})
    for _ in range(2):
        subscription.beat(b"beat")
    sent = [cloudevents.CloudEvent.FromString(await subscription.next()) for _ in range(2)]
    assert [event.attributes["ce-resourceversion"].ce_string for event in sent] == ["7", "9"]
    subscription.beat(b"beat")
    assert await subscription.next() == b"beat"


async def test_an_agent_that_does_not_read_loses_its_stream_and_delays_no_other(hub: HubUnderTest) -> None:
    agent, admin = await joined(hub), await admin_of(hub)
    await hub.store.run(addons.put, {"metadata": {"name": "work", "namespace": NAME}}, None, "test")
    slow, other = await agent.subscribe(ADDONS), await Agent(hub, pair_of(await hub.agent(NAME))).subscribe(ADDONS)
    for number in range(70):
        annotations = {"annotations": {"filler": "x" * 200_000, "number": str(number)}}
        assert (await admin.patch(f"{ADDON_PATH}/work", {"metadata": annotations}))[0] == 200
        await other.until(lambda seen: seen.document["metadata"].get("annotations", {}).get("number") == str(number))  # noqa: B023
    assert await slow.end() is UNAVAILABLE


class SlowReader:
    """A stream, and its connection."""

    aborted = False

    async def write(self, event: bytes) -> None:
        await asyncio.sleep(1 if event == b"slow" else 3600)

    def abort(self) -> None:
        self.aborted = True


def test_an_agent_that_does_not_read_for_the_write_timeout_loses_its_connection() -> None:
    async def write(event: bytes) -> tuple[float, bool, bool]:
        reader: Any = SlowReader()
        refused = await awaited_refusal(UnavailableError, service._write(reader, reader, event))
        return asyncio.get_running_loop().time(), reader.aborted, refused is not None

    assert (in_virtual_time(write(b"slow")), in_virtual_time(write(b"never"))) == ((1, False, False), (30, True, True))


async def test_hostile_input_is_refused_with_a_status(hub: HubUnderTest) -> None:
    agent = await joined(hub)
    lease, renewal = f"{LEASES.name}.{UPDATE}", {"metadata": {"name": "managed-cluster-lease", "namespace": NAME}}
    own = json.dumps(renewal).encode()
    others = json.dumps({"metadata": {**renewal["metadata"], "namespace": "edge2"}}).encode()
    await hub.join("edge2")
    await hub.accept("edge2")
    request, resync = f"{REQUESTS.name}.{CREATE}", f"{LEASES.name}.{RESYNC}"
    types = (
        "",
        "core.v1.secrets.spec.create_request",
        f"{LEASES.name}.spec.delete_request",
        f"{LEASES.name}.status.resync_request",
    )
    bodies = (others, own.replace(b"cluster-lease", b"cluster-lease/x"), b"{", b"[]", b'{"a":' * 200 + b"1" + b"}" * 200)
    lists = (b"[1]", b"{}", b"[%s]" % b",".join([b"{}"] * 10_001))
    attributes = ({f"ce-a{number}": "x" for number in range(99)}, {"contenttype": "text/xml"})
    rows: list[dict[str, Any]] = [
        *({"type": each} for each in types),
        *({"data": each} for each in bodies),
        *({"cluster": each} for each in (None, "", "../edge2")),
        *({"type": resync, "data": b'{"resourceVersions":%s}' % each} for each in lists),
        *({"attributes": each} for each in attributes),
        {"version": "0.3"},
        {"text": own.decode()},
        {"type": request, "data": b'{"metadata":{"name":"unlabelled"}}'},
        {"type": f"{CLUSTERS.name}.{CREATE}", "data": b'{"metadata":{"name":"edge2"}}'},
    ]
    messages = [(encoded(**{"type": lease, "data": own, **row}), INVALID, row) for row in rows]
    foreign = encoded(type=lease, data=others, cluster="edge2")
    messages += [(b"\xff", INVALID, {}), (b"", INVALID, {}), (foreign, DENIED, {})]
    wrong: list[object] = []
    await agent.subscribe(CLUSTERS)  # permitted, so that large messages are read
    for raw, expected, row in (*messages, (encoded(type=lease, data=b" " * 3_200_000), TOO_LARGE, {})):
        with pytest.raises(aio.AioRpcError) as refused:
            await agent.send(raw)
        if refused.value.code() is not expected:
            wrong += [row, refused.value]
    pair, posing = pair_of(await hub.agent(NAME)), {"impersonate-user": "admin", "impersonate-group": "system:masters"}
    for who, data_type, cluster, code in (
        (agent, EVENTS, NAME, INVALID),
        (agent, DataType("secrets", ""), NAME, INVALID),
        (agent, LEASES, "", INVALID),
        *((agent, each, "edge2", DENIED) for each in (*STEADY, TOKENS)),
        (Agent(hub, pair, **posing), CLUSTERS, "edge2", DENIED),
        (Agent(hub, pair, filler="x" * 20_000), CLUSTERS, NAME, TOO_LARGE),
        (Agent(hub), CLUSTERS, NAME, DENIED),
        (Agent(hub, token=UNKNOWN), CLUSTERS, NAME, STRANGER),
    ):
        with pytest.raises(aio.AioRpcError) as refused:
            await who.subscribe(data_type, cluster)
        if refused.value.code() is not code:
            wrong += [data_type.name, cluster, refused.value]
    assert not wrong
    for stranger in (Agent(hub), Agent(hub, token=UNKNOWN)):  # closed before the message is complete
        cut = present(await awaited_refusal(aio.AioRpcError, stranger.send(encoded(type=lease, data=b" " * 400_000))))
        assert cut.code() is UNAVAILABLE
    inner = hub.hub.core.context.inspection.report().partition("inner port: ")[2].partition("\n")[0]
    async with aio.insecure_channel(f"127.0.0.1:{inner}") as local:
        with pytest.raises(aio.AioRpcError) as refused:
            publish: Any = local.unary_unary(f"/{SERVICE}/Publish")
            await publish(foreign)
    assert refused.value.code() is STRANGER


async def test_calls_of_a_connection_and_connections_of_an_address_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ocm_grpc, "MAX_CALLS", 3)
    async with hub_with(tmp_path, ocm_grpc_listen=ANY_PORT, max_connections_per_address=2) as hub:
        agent = await joined(hub)
        first, *_ = [await agent.open(CLUSTERS) for _ in range(3)]
        waiting = asyncio.create_task(agent.open(CLUSTERS))
        other, third = [Agent(hub, pair_of(hub.folder / f"agent-{NAME}.kubeconfig")) for _ in range(2)]
        await other.open(CLUSTERS)
        refused = present(await awaited_refusal(aio.AioRpcError, third.open(CLUSTERS)))
        assert (refused.code(), waiting.done()) == (UNAVAILABLE, False)
        first.call.cancel()
        await waiting


async def test_the_door_is_off_by_default_and_serves_no_other_api_groups(tmp_path: Path) -> None:
    async with hub_with(tmp_path / "off") as off:
        assert "ocm grpc" not in off.hub.core.context.inspection.report()
    with pytest.raises(InvalidError, match="ocm_grpc_listen needs api_group_suffix"):
        await HubUnderTest(tmp_path / "other", ocm_grpc_listen=ANY_PORT, api_group_suffix="hub.example.org").start()
