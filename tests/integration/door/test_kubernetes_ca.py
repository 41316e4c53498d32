"""The Kubernetes CA at the HTTPS door: who comes in with a certificate of it, and as whom; the other door knows none."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hub.access import Peers
from hub.apiserver.kubernetesca import KubernetesAuthority
from hub.domain.certificate import Holder, IssuedCertificate, Profile, Purpose
from hub.issuer import AuthorityProvider, IssuerChain, KubernetesIssuer
from hub.ports import Transaction
from hub.services import certificates
from machinery import pki
from machinery.clock import SystemClock
from machinery.identity import OPERATOR_GROUP, AgentId, ClusterName, Subject, agent_subject
from machinery.kubeconfig import Credential
from machinery.tls import Serving, client_context, server_context
from tests.fakes.authority import OtherCA
from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_access import CLUSTERS, Visitor, holder

WHO = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
MINUTES = timedelta(minutes=5)


class Stage:
    """A hub that knows a Kubernetes CA, by some groups."""

    def __init__(self, hub: HubUnderTest) -> None:
        self.hub = hub
        self.ca = OtherCA("kubernetes")
        self.provider = AuthorityProvider()

    async def start(self, *groups: str) -> None:
        def way(serving: Serving) -> tuple[KubernetesAuthority]:
            peers = Peers(self.hub.store, SystemClock())
            made = KubernetesAuthority(groups, serving, peers.identify, peers.former, SystemClock())
            self.provider.listen(lambda: made.take(self.provider.certificate))
            return (made,)

        self.hub.make_ways_in = way
        await self.hub.restart()
        self.provider.set(self.ca.certificate, self.ca.key)

    @property
    def chain(self) -> IssuerChain:
        return IssuerChain(self.hub.issuer, (KubernetesIssuer(self.provider),))

    async def login(self, user: str, *groups: str) -> Credential:
        """A certificate as an operator gets it for a token."""
        key = pki.generate_key()

        def issue(tx: Transaction) -> IssuedCertificate:
            subject = Subject(user, frozenset(groups))
            profile = Profile(Purpose.LOGIN, subject, pki.public_key_of(key), tx.now - MINUTES, tx.now + MINUTES)
            return certificates.sign(tx, self.chain, profile, Holder())

        issued = await self.hub.store.run(issue)
        assert issued.signed_by == self.provider.signer
        return Credential(issued.chain, key)

    def visitor(self, credential: Credential) -> Visitor:
        return Visitor(self.hub, client_context(self.hub.issuer.trust_bundle, credential.chain, credential.key))

    async def who(self, credential: Credential) -> tuple[str, list[str]]:
        """As whom the door knows a certificate."""
        status, answer = await self.visitor(credential).ask("POST", WHO, REVIEW)
        assert status == 201, answer
        told: dict[str, Any] = answer["status"]["userInfo"]
        return told["username"], [group for group in told.get("groups", ()) if group != "system:authenticated"]

    async def refused(self, credential: Credential) -> str:
        status, answer = await self.visitor(credential).get(CLUSTERS)
        assert status == 401, answer
        return str(answer["message"])


@pytest.fixture
async def stage(hub: HubUnderTest) -> Stage:
    stage = Stage(hub)
    await stage.start("dev", "ops")
    return stage


async def test_a_login_of_the_hubs_own_is_who_its_record_says_by_the_groups_that_are_named(stage: Stage) -> None:
    assert await stage.who(await stage.login("ann", "dev", "qa")) == ("ann", ["dev"])
    assert await stage.who(await stage.login("bob")) == ("bob", [])


async def test_a_login_that_is_revoked_opens_nothing_though_its_groups_are_named(stage: Stage) -> None:
    """It must not come back as somebody whom the CA vouches for."""
    ann = await stage.login("ann", "dev")
    assert await stage.who(ann) == ("ann", ["dev"])
    serial = pki.parse_certificate(ann.chain).serial
    await stage.hub.store.run(lambda tx: tx.certificates.revoke([serial], tx.now, "Test"))
    await stage.start("dev", "ops")  # what was remembered is forgotten
    assert "revoked" in await stage.refused(ann)


async def test_what_the_ca_issued_to_somebody_else_enters_by_a_named_group_and_under_a_name_of_its_own(stage: Stage) -> None:
    assert await stage.who(stage.ca.issue("ann", "dev", "system:masters")) == ("kubernetes:ann", ["dev"])
    assert await stage.who(stage.ca.issue("system:node:one", "ops")) == ("kubernetes:system:node:one", ["ops"])


@pytest.mark.parametrize(
    ("user", "groups"),
    [
        ("kubernetes-admin", ("system:masters",)),
        ("system:node:one", ("system:nodes",)),
        ("ann", ()),
        ("ann", ("qa",)),
        (agent_subject(ClusterName("edge1"), AgentId("agent")).common_name, ()),
    ],
    ids=["system:masters", "a kubelet", "no groups", "another group", "an agent's name"],
)
async def test_whom_no_named_group_vouches_for_is_nobody(stage: Stage, user: str, groups: tuple[str, ...]) -> None:
    assert "names no group that counts here" in await stage.refused(stage.ca.issue(user, *groups))


async def test_rights_of_a_user_of_the_hub_are_not_those_of_a_namesake(stage: Stage) -> None:
    admin = holder(stage.hub, await stage.hub.admin())
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "ann"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "User", "name": "ann"}],
    }
    assert (await admin.ask("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding))[0] == 201
    assert (await stage.visitor(await stage.login("ann")).get(CLUSTERS))[0] == 200
    assert (await stage.visitor(stage.ca.issue("ann", "dev")).get(CLUSTERS))[0] == 403


async def test_a_record_of_an_agent_is_none_for_a_certificate_of_this_ca(stage: Stage) -> None:
    """Same serial, same key, and the names of an agent: the record is there, and it was the hub's own CA that signed."""
    await stage.hub.join("edge1")
    path = await stage.hub.agent("edge1")
    agent = holder(stage.hub, path)
    assert (await agent.get(f"{CLUSTERS}/edge1"))[0] == 200
    from machinery.kubeconfig import read_kubeconfig  # noqa: PLC0415 - here alone

    own = read_kubeconfig(path).require_credential()
    facts = pki.parse_certificate(own.chain)
    plan = pki.Plan(facts.subject, facts.public_key, facts.serial, *_within(facts, stage.ca.authority.facts))
    forged = Credential(stage.ca.authority.sign(plan), own.key)
    status, answer = await stage.visitor(forged).get(f"{CLUSTERS}/edge1")
    assert (status, "signs operators' logins and nothing else" in answer["message"]) == (401, True)


def _within(facts: pki.CertificateFacts, authority: pki.CertificateFacts) -> tuple[Any, Any]:
    return max(facts.not_before, authority.not_before), min(facts.not_after, authority.not_after)


async def test_without_named_groups_or_a_ca_the_handshake_is_refused(stage: Stage) -> None:
    ann = await stage.login("ann", "dev")
    stage.provider.unset()
    with pytest.raises(aiohttp.ClientError):
        await stage.visitor(ann).get(CLUSTERS)


async def test_a_new_ca_is_trusted_at_once_and_the_old_one_is_not(stage: Stage) -> None:
    old = await stage.login("ann", "dev")
    stage.ca = OtherCA("kubernetes")
    stage.provider.set(stage.ca.certificate, stage.ca.key)
    assert await stage.who(await stage.login("ann", "dev")) == ("ann", ["dev"])
    with pytest.raises(aiohttp.ClientError):
        await stage.visitor(old).get(CLUSTERS)


async def test_the_hubs_own_ca_is_never_taken_for_the_clusters(stage: Stage) -> None:
    """A hub that serves as its cluster's CA would have its agents judged as strangers."""
    folder: Path = stage.hub.folder
    stage.provider.set((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes())
    admin = holder(stage.hub, await stage.hub.admin())
    assert (await admin.get(CLUSTERS))[0] == 200


async def test_who_may_do_everything_here_is_not_so_by_a_group_of_that_cluster(stage: Stage) -> None:
    await stage.start("dev", OPERATOR_GROUP)
    user, groups = await stage.who(stage.ca.issue("mallory", "dev", OPERATOR_GROUP))
    assert (user, groups) == ("kubernetes:mallory", ["dev"])


def test_the_door_for_agents_never_trusts_it(hub: HubUnderTest) -> None:
    """Its trust is what the serving material says; CAs of clients are added for the HTTPS listener alone."""
    before = hub.serving.material
    hub.serving.trust_clients("kubernetes-ca", OtherCA("kubernetes").certificate)
    assert hub.serving.material == before
    assert len(server_context(hub.serving.material).get_ca_certs()) == len(pki.split_bundle(before.trust))
