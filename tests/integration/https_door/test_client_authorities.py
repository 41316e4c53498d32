"""CAs other than the hub's at the HTTPS door: a file of CAs, the Kubernetes CA, and a kube-apiserver's front proxy."""

import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from hub.api.certificates import CertificateHolder, IssuedCertificate, Profile, Purpose
from hub.composition.core import HubCore
from hub.extensions.aggregation.management import Aggregation
from hub.extensions.kube_cert_agent.authority import KubernetesAuthority, KubernetesIssuer
from hub.https_door.callers.client_ca import ClientAuthorityFile
from hub.ports import Transaction
from hub.registry import certificates
from machinery import pki
from machinery.client.kubeconfig import Credential, read_kubeconfig
from machinery.errors import InvalidError
from machinery.identity import OPERATOR_GROUP, AgentId, CertificateSubject, ClusterName, agent_subject
from machinery.runtime.clock import SystemClock
from machinery.runtime.tls import client_context, server_context
from tests.checks import check_refusal_of
from tests.fakes.authority import OtherCA
from tests.fakes.host_cluster import ManagementInMemory, aggregating_proxy
from tests.fakes.scripted_apiserver import kubeconfig
from tests.integration.https_door.conftest import CLUSTERS, RBAC, HubUnderTest, Visitor, admin_of, bearer, holder, nobody


class Guests:
    """A hub with a file of CAs."""

    def __init__(self, hub: HubUnderTest, path: Path) -> None:
        self.hub = hub
        self.path = path
        self.first, self.second = OtherCA("first"), OtherCA("second")
        path.write_bytes(self.first.certificate)

    async def start(self) -> None:
        self.hub.configure(client_ca_file=self.path, client_ca_groups=("ops", "watchers"))
        await self.hub.restart()

    @property
    def file(self) -> ClientAuthorityFile:
        way = self.hub.operators.authenticators[0]
        assert isinstance(way, ClientAuthorityFile)
        return way

    async def write(self, *bundle: bytes) -> None:
        self.path.write_bytes(b"".join(bundle))
        await self.file.look()


def shows(hub: HubUnderTest, credential: Credential) -> Visitor:
    """Somebody with that certificate."""
    return Visitor(hub, client_context(hub.issuer.trust_bundle, credential.chain, credential.key))


async def refused(visitor: Visitor, path: str = "/version") -> None:
    """TLS refuses its certificate."""
    await check_refusal_of(aiohttp.ClientError, visitor.get(path))


@pytest.fixture
async def guests(hub: HubUnderTest, tmp_path: Path) -> Guests:
    guests = Guests(hub, tmp_path / "clients.crt")
    await guests.start()
    return guests


async def user_of(visitor: Visitor) -> str:
    """Whom the door takes the visitor for."""
    status, answer = await visitor.get(CLUSTERS)
    assert status == 403, answer
    return str(answer["message"].partition('User "')[2].partition('"')[0])


async def test_certificates_of_another_ca_name_users_but_neither_operators_nor_agents(guests: Guests) -> None:
    assert await user_of(shows(guests.hub, guests.first.issue("carol", "ops"))) == "carol"
    assert await user_of(shows(guests.hub, guests.first.issue("carol", "system:masters"))) == "carol"
    agent = guests.first.issue("system:open-cluster-management:edge1:bcdfg", "system:open-cluster-management:edge1")
    status, answer = await shows(guests.hub, agent).get(f"{CLUSTERS}/edge1")
    assert (status, "only the server assigns such names" in answer["message"]) == (401, True)
    middle = OtherCA("middle")
    await guests.write(OtherCA("root").authority.cross_sign(middle.certificate, pki.random_serial()))
    assert await user_of(shows(guests.hub, middle.issue("erin"))) == "erin", "a CA under another one"


async def test_cas_are_exchanged_without_a_connection_lost(guests: Guests) -> None:
    hub = guests.hub
    await hub.join("edge1")
    carol, dave = guests.first.issue("carol", "ops"), guests.second.issue("dave", "ops")
    await refused(shows(guests.hub, dave))
    admin = await admin_of(hub)
    await admin.bind("cluster-admin", "Group", "watchers")
    watchers = (shows(hub, ca.issue(f"of-{number}", "watchers")) for number, ca in enumerate((guests.first, guests.second)))
    async with AsyncExitStack() as stack:
        watch = await stack.enter_async_context(admin.watch(f"{CLUSTERS}/edge1?watch=1"))
        assert await watch.type() == "ADDED"
        await guests.write(guests.first.certificate, guests.second.certificate)
        ends, stays = [await stack.enter_async_context(each.watch(f"{CLUSTERS}/edge1?watch=1")) for each in watchers]
        assert [await each.type() for each in (ends, stays)] == ["ADDED", "ADDED"]
        assert [await user_of(shows(guests.hub, one)) for one in (carol, dave)] == ["carol", "dave"]
        await guests.write(guests.second.certificate)
        await ends.broken()
        assert stays.is_open
        await refused(shows(guests.hub, carol))
        assert await user_of(shows(guests.hub, dave)) == "dave"
        assert (await admin.get(CLUSTERS))[0] == 200, "the hub's own CA stays trusted"
        assert (await admin.patch(f"{CLUSTERS}/edge1", {"metadata": {"labels": {"tier": "gold"}}}))[0] == 200
        assert await watch.type() == "MODIFIED"


async def test_open_connections_and_resumed_sessions_are_refused_once_their_ca_is_gone(guests: Guests) -> None:
    carol = shows(guests.hub, guests.first.issue("carol", "ops"))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=carol.context, limit=1)) as session:
        async with session.get(guests.hub.server + "/apis") as before:
            assert before.status == 200
            await before.read()
        await guests.write(guests.second.certificate)
        async with session.get(guests.hub.server + "/apis") as after:
            assert after.status == 401

    await guests.write(guests.first.certificate)
    assert (await carol.get("/apis"))[0] == 200
    await guests.write(guests.second.certificate)
    for _ in range(2):
        try:
            status, _answer = await carol.get("/apis")
        except aiohttp.ClientError:
            continue
        assert status == 401


async def test_a_client_ca_file_that_cannot_be_used_changes_nothing(guests: Guests, tmp_path: Path) -> None:
    carol = shows(guests.hub, guests.first.issue("carol", "ops"))
    for content in (b"", b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        await guests.write(content)
        assert await user_of(carol) == "carol", content
    guests.path.unlink()
    await guests.file.look()
    assert await user_of(carol) == "carol"

    path = tmp_path / "none.crt"
    for written in (None, b"no PEM"):
        if written is not None:
            path.write_bytes(written)
        with pytest.raises(InvalidError, match=r"client_ca_file: .*none\.crt"):
            ClientAuthorityFile(path, (), guests.hub.serving, SystemClock())

    await guests.write(guests.second.certificate, guests.hub.issuer.trust_bundle)
    await refused(shows(guests.hub, guests.second.issue("dave")))
    agent = holder(guests.hub, await guests.hub.agent("edge1"))
    await guests.hub.join("edge1")
    assert (await agent.get(f"{CLUSTERS}/edge1"))[0] == 200


MINUTES = timedelta(minutes=5)


class KubernetesStage:
    """A hub that knows a Kubernetes CA, by some groups."""

    def __init__(self, hub: HubUnderTest) -> None:
        self.hub = hub
        self.ca = OtherCA("kubernetes")
        self.issuer = KubernetesIssuer()

    async def start(self, *groups: str) -> None:
        async def install(core: HubCore) -> None:
            serving, peers = core.certificates.doors.serving, core.access.peers
            made = KubernetesAuthority(groups, serving, peers.identify, peers.former, core.context.clock)
            self.issuer.listen(made.take)
            core.authenticators.append(made)
            core.resources.issuer.add_login_issuer(self.issuer)

        self.hub.extensions = (install,)
        await self.hub.restart()
        self.issuer.set_authority(self.ca.certificate, self.ca.key)

    async def login(self, user: str, *groups: str) -> Credential:
        """A certificate as an operator gets it for a token."""
        key = pki.generate_key()

        def issue(tx: Transaction) -> IssuedCertificate:
            subject = CertificateSubject(user, frozenset(groups))
            profile = Profile(Purpose.LOGIN, subject, pki.public_key_of(key), tx.now - MINUTES, tx.now + MINUTES)
            return certificates.sign(tx, self.hub.issuer, profile, CertificateHolder())

        issued = await self.hub.store.run(issue)
        assert issued.signed_by == self.issuer.signer
        return Credential(issued.chain, key)

    async def who(self, credential: Credential) -> tuple[str, list[str]]:
        """As whom the door knows a certificate."""
        user, groups = await shows(self.hub, credential).whoami()
        return user, [group for group in groups if group != "system:authenticated"]

    async def refused(self, credential: Credential) -> str:
        status, answer = await shows(self.hub, credential).get(CLUSTERS)
        assert status == 401, answer
        return str(answer["message"])


@pytest.fixture
async def kubernetes(hub: HubUnderTest) -> KubernetesStage:
    kubernetes = KubernetesStage(hub)
    await kubernetes.start("dev", "ops")
    return kubernetes


async def test_certificates_of_the_kubernetes_ca_enter_by_named_groups_under_own_names(kubernetes: KubernetesStage) -> None:
    assert await kubernetes.who(await kubernetes.login("ann", "dev", "qa")) == ("ann", ["dev"])
    assert await kubernetes.who(await kubernetes.login("bob")) == ("bob", [])

    assert await kubernetes.who(kubernetes.ca.issue("ann", "dev", "system:masters")) == ("kubernetes:ann", ["dev"])
    assert await kubernetes.who(kubernetes.ca.issue("system:node:one", "ops")) == ("kubernetes:system:node:one", ["ops"])

    for user, groups in (
        *(("kubernetes-admin", ("system:masters",)), ("system:node:one", ("system:nodes",)), ("ann", ()), ("ann", ("qa",))),
        (agent_subject(ClusterName("edge1"), AgentId("agent")).common_name, ()),
    ):
        assert "has no group that is accepted here" in await kubernetes.refused(kubernetes.ca.issue(user, *groups)), groups

    await kubernetes.hub.join("edge1")
    path = await kubernetes.hub.agent("edge1")
    assert (await holder(kubernetes.hub, path).get(f"{CLUSTERS}/edge1"))[0] == 200
    own = read_kubeconfig(path).require_credential()
    facts, authority = pki.parse_certificate(own.chain), kubernetes.ca.authority.facts
    within = max(facts.not_before, authority.not_before), min(facts.not_after, authority.not_after)
    forged = Credential(kubernetes.ca.authority.sign(pki.Plan(facts.subject, facts.public_key, facts.serial, *within)), own.key)
    status, answer = await shows(kubernetes.hub, forged).get(f"{CLUSTERS}/edge1")
    assert (status, "signs only operators' logins" in answer["message"]) == (401, True)


async def test_a_login_that_is_revoked_opens_nothing_though_its_groups_are_named(kubernetes: KubernetesStage) -> None:
    """It must not come back as somebody whom the CA vouches for."""
    ann = await kubernetes.login("ann", "dev")
    assert await kubernetes.who(ann) == ("ann", ["dev"])
    serial = pki.parse_certificate(ann.chain).serial
    await kubernetes.hub.store.run(lambda tx: tx.certificates.revoke([serial], tx.now, "Test"))
    await kubernetes.start("dev", "ops")  # what was remembered is forgotten
    assert "revoked" in await kubernetes.refused(ann)


async def test_a_namesake_of_a_user_has_other_rights_and_no_group_gives_all_rights(kubernetes: KubernetesStage) -> None:
    await (await admin_of(kubernetes.hub)).bind("cluster-admin", "User", "ann")
    assert (await shows(kubernetes.hub, await kubernetes.login("ann")).get(CLUSTERS))[0] == 200
    assert (await shows(kubernetes.hub, kubernetes.ca.issue("ann", "dev")).get(CLUSTERS))[0] == 403
    await kubernetes.start("dev", OPERATOR_GROUP)
    user, groups = await kubernetes.who(kubernetes.ca.issue("mallory", "dev", OPERATOR_GROUP))
    assert (user, groups) == ("kubernetes:mallory", ["dev"])


async def test_a_new_ca_is_trusted_at_once_and_an_old_one_is_not(kubernetes: KubernetesStage) -> None:
    old = await kubernetes.login("ann", "dev")
    kubernetes.ca = OtherCA("kubernetes")
    kubernetes.issuer.set_authority(kubernetes.ca.certificate, kubernetes.ca.key)
    assert await kubernetes.who(await kubernetes.login("ann", "dev")) == ("ann", ["dev"])
    await refused(shows(kubernetes.hub, old))
    folder: Path = kubernetes.hub.folder
    kubernetes.issuer.set_authority((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes())
    assert (await (await admin_of(kubernetes.hub)).get(CLUSTERS))[0] == 200


def test_the_door_for_agents_never_trusts_it(hub: HubUnderTest) -> None:
    """Its trust is what the serving material says; CAs of clients are added for the HTTPS listener alone."""
    before = hub.serving.material
    hub.serving.trust_clients("kubernetes-ca", OtherCA("kubernetes").certificate)
    assert hub.serving.material == before
    assert len(server_context(hub.serving.material).get_ca_certs()) == len(pki.split_bundle(before.trust))


SERVICE = ("muster", "hub")


@dataclass
class Stage:
    """A hub, the cluster before it, and the way between them."""

    hub: HubUnderTest
    management: ManagementInMemory
    aggregation: Aggregation

    def proxy(self, ca: OtherCA | None = None, name: str = "front-proxy-client") -> Visitor:
        return shows(self.hub, (ca or self.management.proxy_ca).issue(name))

    async def ask(self, user: str, path: str = CLUSTERS, method: str = "GET", body: Any = None) -> tuple[int, Any]:
        return await self.proxy().ask(method, path, body, **{"X-Remote-User": user, "X-Remote-Group": "dev"})


@pytest.fixture
async def stage(hub: HubUnderTest, tmp_path: Path) -> AsyncIterator[Stage]:
    async with ManagementInMemory() as management:
        file = tmp_path / "management.kubeconfig"
        file.write_text(yaml.safe_dump(management.kubeconfig))
        hub.configure(management_cluster=str(file), aggregation_service="/".join(SERVICE))
        await hub.restart()
        aggregation = hub.operators.authenticators[0]
        assert isinstance(aggregation, Aggregation)
        await aggregation.look()
        yield Stage(hub, management, aggregation)
        await hub.stop()


async def test_users_of_the_cluster_have_the_rights_that_it_gives_and_none_of_the_hubs_roles(stage: Stage) -> None:
    await stage.hub.join("edge1")
    status, answer = await stage.ask("ann")
    assert (status, [item["metadata"]["name"] for item in answer["items"]]) == (200, ["edge1"])
    status, answer = await stage.ask("bob")
    assert (status, 'User "bob" cannot list resource "managedclusters"' in answer["message"]) == (403, True)
    assert (await stage.ask("ann", f"{CLUSTERS}/edge1", "DELETE"))[0] == 403
    user, asked = stage.management.asked[0]
    group = "cluster.open-cluster-management.io"
    assert (user, asked.verb, asked.group, asked.resource) == ("ann", "list", group, "managedclusters")

    await (await admin_of(stage.hub)).bind("cluster-admin", "ServiceAccount", "metrics", namespace="default")
    assert (await stage.ask("system:serviceaccount:default:metrics"))[0] == 403
    stage.management.may.add(("system:serviceaccount:default:metrics", "create"))
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    role = {"metadata": {"name": "mine"}, "roleRef": reference, "subjects": [{"kind": "User", "name": "mallory"}]}
    status, answer = await stage.ask("system:serviceaccount:default:metrics", f"{RBAC}/clusterrolebindings", "POST", role)
    assert status == 403, answer

    assert (await bearer(stage.hub, "ann-token").get(CLUSTERS))[0] == 200
    assert (await bearer(stage.hub, "bob-token").get(CLUSTERS))[0] == 403
    status, answer = await bearer(stage.hub, "guess").get(CLUSTERS)
    assert (status, answer["message"]) == (401, "Unauthorized")

    claim = {"X-Remote-User": "ann", "X-Remote-Group": "system:masters"}
    assert (await nobody(stage.hub).ask("GET", CLUSTERS, **claim))[0] == 403
    assert (await holder(stage.hub, await stage.hub.agent("edge1")).ask("GET", CLUSTERS, **claim))[0] == 403
    status, _ = await stage.proxy(name="mallory").ask("GET", CLUSTERS, **claim)
    assert status == 401
    await check_refusal_of(aiohttp.ClientError, stage.proxy(OtherCA("front-proxy-ca")).ask("GET", CLUSTERS, **claim))


async def test_proxy_cas_and_api_service_bundles_are_kept_up_to_date(stage: Stage) -> None:
    old, new = stage.management.proxy_ca, OtherCA("front-proxy-ca")
    await stage.management.say(new)
    await stage.aggregation.look()
    ann = {"X-Remote-User": "ann"}
    assert (await stage.proxy(new).ask("GET", CLUSTERS, **ann))[0] == 200
    await check_refusal_of(aiohttp.ClientError, stage.proxy(old).ask("GET", CLUSTERS, **ann))

    for name, namespace in (("v1.ours", "muster"), ("v1.theirs", "elsewhere")):
        await stage.management.add_api_service(name, {"namespace": namespace, "name": "hub"})
    stage.hub.issuer.trust_also(OtherCA("serving").certificate)  # as --serving-ca-file does
    await stage.aggregation.look()
    encoded = base64.b64encode(stage.hub.issuer.trust_bundle).decode()
    assert (await stage.management.api_service("v1.ours"))["spec"]["caBundle"] == encoded
    assert "caBundle" not in (await stage.management.api_service("v1.theirs"))["spec"]
    stage.management.requests.clear()
    await stage.aggregation.look()
    assert {verb for verb, _ in stage.management.requests} == {"get", "list"}, "what is right is not written"

    assert (await stage.ask("ann", "/apis/apps/v1/deployments"))[0] in (403, 404)
    await stage.management.stop()
    await stage.aggregation.look()
    assert ((await stage.ask("carol"))[0], (await bearer(stage.hub, "new-token").get(CLUSTERS))[0]) == (403, 503)
    assert (await (await admin_of(stage.hub)).get(CLUSTERS))[0] == 200


@pytest.mark.kubectl
async def test_kubectl_works_through_the_clusters_aggregation_layer(stage: Stage, tmp_path: Path) -> None:
    await stage.hub.join("edge1")
    async with aggregating_proxy(stage.management, stage.hub.server, stage.hub.issuer.trust_bundle) as proxy:
        for token, code, words in (("ann-token", 0, "edge1"), ("bob-token", 1, 'User "bob" cannot list')):
            path = tmp_path / f"{token}.kubeconfig"
            path.write_text(yaml.safe_dump(kubeconfig(f"{proxy}/as/{token}")))
            await stage.hub.runs(("kubectl get managedclusters", code, words), path=path)
