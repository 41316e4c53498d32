"""A store on SQLite, the door's storage over it, and the whole door on a real port with real certificates."""

import asyncio
import json
import os
import shlex
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hub.api.bootstrapcredentials import CredentialBounds
from hub.api.certificates import CertificateHolder, IssuedCertificate, Lifetimes, Profile, Purpose
from hub.api.certificatesigningrequests import USAGES, Requester
from hub.composition.core import Access
from hub.composition.operators import OperatorsDoor
from hub.https_door.storage.feed import ChangeFeed
from hub.https_door.storage.storage import ServiceStorage
from hub.ports import Transaction
from hub.ports.identities import Issuer
from hub.registry import certificates, namespaces
from hub.registry.bootstrapcredentials.service import CredentialTerms, create_token
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.managedclusters import service as clusters
from hub.replica.admin_kubeconfig import ADMIN_FILE
from hub.store import SqlStore
from machinery import identity, pki
from machinery.client import kubeconfig
from machinery.product import GROUP_SUFFIX
from machinery.runtime.tls import client_context
from tests import programs
from tests.fakes.authority import sign_anything
from tests.fakes.databases import SEAL, migrated
from tests.fakes.hubctl import Said, hubctl_at
from tests.fakes.inprocess_hub import InProcessHub
from tests.fakes.rpc_stage import csr

LIFETIMES = Lifetimes()
REPLICA = "here"
CLUSTERS = "/apis/cluster.open-cluster-management.io/v1/managedclusters"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
MERGE = {"content-type": "application/merge-patch+json"}
EDITOR = "sed -i -e s/gold/silver/"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{migrated(tmp_path / 'hub.db')}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    opened = SqlStore(url, SEAL)
    await opened.open()
    await opened.run(namespaces.ensure_predefined)
    yield opened
    await opened.close()


@pytest.fixture
async def feed(store: SqlStore) -> AsyncIterator[ChangeFeed]:
    following = ChangeFeed(store, queue=4)
    task = asyncio.create_task(following.run(), name="feed")
    yield following
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.fixture
def storage(store: SqlStore, feed: ChangeFeed) -> ServiceStorage:
    return ServiceStorage(store, feed, GROUP_SUFFIX)


class HubUnderTest(InProcessHub):
    """A hub that runs no controllers, and what operators and agents do at its HTTPS door."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder, **{"replica_name": REPLICA, **settings})

    async def restart(self) -> None:
        await self.stop()
        with kept_free(self.port):
            await self.start()

    @property
    def port(self) -> int:
        return self.hub.core.context.settings.https_listen.port

    @property
    def access(self) -> Access:
        return self.hub.core.access

    @property
    def operators(self) -> OperatorsDoor:
        return self.hub.operators

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def kubeconfig(self, name: str, issued: IssuedCertificate, key: bytes, **entry: Any) -> Path:
        """A kubeconfig file for a certificate."""
        fields = {"name": "muster", "server": self.server, "certificate_authority": self.issuer.trust_bundle, **entry}
        content = kubeconfig.write_kubeconfig(
            kubeconfig.ClusterEntry(**fields), kubeconfig.Credential(issued.chain, key), user=name
        )
        path = self.folder / f"{name}.kubeconfig"
        path.write_bytes(content)
        return path

    def token_kubeconfig(self, name: str, token: str) -> Path:
        entry = kubeconfig.ClusterEntry("muster", self.server, self.issuer.trust_bundle)
        path = self.folder / f"{name}-token.kubeconfig"
        path.write_bytes(kubeconfig.write_kubeconfig(entry, token, user=name))
        return path

    async def admin(self) -> Path:
        return self.folder / ADMIN_FILE

    async def agent(self, cluster: str, *, expired_since: timedelta | None = None) -> Path:
        """The kubeconfig of an agent of `cluster`."""
        key, left = pki.generate_key(), LIFETIMES.agent if expired_since is None else -expired_since
        issued = await self.store.run(_sign_agent, self.issuer, identity.ClusterName(cluster), pki.public_key_of(key), left)
        return self.kubeconfig(f"agent-{cluster}", issued, key)

    async def certificate(
        self, purpose: Purpose, subject: identity.CertificateSubject, whose: CertificateHolder | None = None
    ) -> Path:
        """The kubeconfig of anybody with a certificate of the hub's CA, whatever the hub itself would sign."""
        key = pki.generate_key()

        def sign(tx: Transaction) -> IssuedCertificate:
            begins, ends = tx.now - LIFETIMES.backdate, tx.now + LIFETIMES.bootstrap
            profile = Profile(purpose, subject, pki.public_key_of(key), begins, ends)
            return sign_anything(tx, self.issuer, profile, whose or CertificateHolder())

        return self.kubeconfig(f"{purpose}-{subject.common_name}".replace(":", "-"), await self.store.run(sign), key)

    async def join(self, name: str, **labels: str) -> None:
        """A ManagedCluster, as an operator enters it."""
        document = {"metadata": {"name": name, "labels": labels}, "spec": {"hubAcceptsClient": False}}
        await self.store.run(clusters.put, document, None, "test")

    async def request(self, cluster: str, name: str, *patterns: str) -> None:
        """A certificate request that waits, as the door for agents stores it. Its credential is for `patterns` or this name."""
        submission = asked_for(cluster, "bcdfg", cluster)
        submission["metadata"] |= {"name": name}
        bounds = CredentialBounds(patterns)
        terms = CredentialTerms(None if patterns else identity.ClusterName(cluster), None, LIFETIMES.bootstrap, bounds)
        credential, _token = await self.store.run(create_token, terms, "test")
        await self.store.run(requests.put, submission, None, Requester(identity.bootstrap_user(credential.id)))

    async def revoke(self, path: Path) -> None:
        """Revokes the certificate in a kubeconfig."""
        serial = pki.parse_certificate(kubeconfig.read_kubeconfig(path).require_credential().chain).serial
        await self.store.run(lambda tx: tx.certificates.revoke([identity.SerialNumber(serial)], tx.now, "Test"))

    async def hubctl(self, line: str, *words: str, path: Path | None = None, given: str = "") -> Said:
        """Runs hubctl in this process with the admin kubeconfig, or `path`, one at a time. `line` is split as by a shell."""
        return await hubctl_at(path or await self.admin(), *shlex.split(line), *words, given=given)

    async def output(self, line: str, *words: str, path: Path | None = None, given: str = "") -> str:
        """What `hubctl LINE` or `kubectl LINE` prints, which must succeed."""
        ended = await self.typed(line, *words, path=path, given=given)
        assert ended.code == 0, (line, ended.err)
        return ended.out

    async def typed(self, line: str, *words: str, path: Path | None = None, given: str = "") -> Said:
        """The end of a line that begins with `hubctl` or `kubectl`."""
        program, _, rest = line.partition(" ")
        if program == "kubectl":
            return await self.kubectl(rest, *words, path=path)
        assert program == "hubctl", line
        return await self.hubctl(rest, *words, path=path, given=given)

    async def runs(self, *rows: tuple[str, int, str], path: Path | None = None) -> None:
        """Types lines one after the other; each ends with its code, and says the words."""
        for line, code, words in rows:
            ended = await self.typed(line, path=path)
            assert (ended.code, words in ended.out + ended.err) == (code, True), (line, words, ended)

    async def start_hubctl(self, *arguments: str, path: Path | None = None) -> "Running":
        """Starts a hubctl that goes on, as with --watch."""
        env, pipe = _environment(HUBCTL_KUBECONFIG=str(path or await self.admin())), programs.PIPE
        return Running(await programs.start("hubctl", *arguments, env=env, unbuffered=True, stdout=pipe, stderr=pipe))

    async def kubectl(self, line: str, *words: str, path: Path | None = None) -> Said:
        """Runs kubectl with the admin kubeconfig, or `path`. `line` is split as by a shell."""
        chosen = path or await self.admin()
        given = (f"--kubeconfig={chosen}", f"--cache-dir={self.folder / 'cache'}")
        return await run("kubectl", *given, *shlex.split(line), *words, KUBE_EDITOR=EDITOR)


@asynccontextmanager
async def hub_with(folder: Path, **settings: Any) -> AsyncIterator[HubUnderTest]:
    """A hub with other settings than those of the fixture `hub`."""
    running = HubUnderTest(folder, **settings)
    await running.start()
    yield running
    await running.stop()


@dataclass
class Running:
    """A program that goes on."""

    process: programs.Process

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(15):
            return (await self.process.stdout.readline()).decode().rstrip()

    async def end(self) -> str:
        self.process.terminate()
        _, err = await self.process.communicate()
        return err.decode()


@dataclass
class Visitor:
    """A client of the HTTPS door."""

    hub: HubUnderTest
    context: ssl.SSLContext
    headers: Mapping[str, str] = field(default_factory=dict)

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any]:
        async with (
            self.session() as session,
            session.request(method, self.hub.server + path, json=body, headers=headers) as response,
        ):
            text = await response.text()
            return response.status, json.loads(text) if text.startswith("{") else text

    async def get(self, path: str) -> tuple[int, Any]:
        return await self.ask("GET", path)

    async def patch(self, path: str, body: Any) -> tuple[int, Any]:
        """A merge patch."""
        return await self.ask("PATCH", path, body, **MERGE)

    async def token(self, account: str, **spec: Any) -> str:
        """A token of a ServiceAccount in the namespace default, which is made if need be."""
        await self.ask("POST", ACCOUNTS, {"metadata": {"name": account}})
        status, answer = await self.ask("POST", f"{ACCOUNTS}/{account}/token", {"spec": spec})
        assert status == 201, answer
        return str(answer["status"]["token"])

    async def whoami(self) -> tuple[str, list[str]]:
        """The user and the groups as which the door knows the visitor."""
        status, answer = await self.ask("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
        assert status == 201, answer
        user = answer["status"]["userInfo"]
        return user["username"], user["groups"]

    async def until(self, path: str, status: int) -> None:
        """Returns when the path is answered with that status."""
        async with asyncio.timeout(10):
            while (await self.get(path))[0] != status:
                pass

    async def bind(self, role: str, kind: str, user: str, *, namespace: str = "") -> None:
        """Binds a ClusterRole to a User, Group or ServiceAccount; the binding has the subject's name."""
        group = {"namespace": namespace} if namespace else {"apiGroup": "rbac.authorization.k8s.io"}
        binding = {
            "metadata": {"name": user},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": kind, "name": user, **group}],
        }
        status, answer = await self.ask("POST", f"{RBAC}/clusterrolebindings", binding)
        assert status == 201, answer

    def session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=self.context), headers=self.headers)

    @asynccontextmanager
    async def watch(self, path: str) -> AsyncIterator["Watch"]:
        async with self.session() as session, session.get(f"{self.hub.server}{path}") as response:
            assert response.status == 200
            yield Watch(response)


@dataclass
class Watch:
    """An open watch."""

    response: aiohttp.ClientResponse

    async def event(self) -> Any:
        return json.loads(await self.response.content.readline())

    async def type(self) -> str:
        return str((await self.event())["type"])

    async def broken(self) -> None:
        """Returns when the server has cut the connection."""
        async with asyncio.timeout(10):
            with pytest.raises(aiohttp.ClientError):
                while await self.response.content.readline():
                    pass

    @property
    def is_open(self) -> bool:
        return not self.response.content.at_eof()


def nobody(hub: HubUnderTest) -> Visitor:
    return Visitor(hub, client_context(hub.issuer.trust_bundle))


def bearer(hub: HubUnderTest, token: str) -> Visitor:
    """Somebody with a token and no certificate."""
    return Visitor(hub, nobody(hub).context, {"Authorization": f"Bearer {token}"})


def holder(hub: HubUnderTest, path: Path) -> Visitor:
    """The user of a kubeconfig."""
    credential = kubeconfig.read_kubeconfig(path).require_credential()
    return Visitor(hub, client_context(hub.issuer.trust_bundle, credential.chain, credential.key))


async def admin_of(hub: HubUnderTest) -> Visitor:
    return holder(hub, await hub.admin())


def asked_for(cluster: str, agent: str, labelled: str) -> dict[str, Any]:
    """A certificate request as OCM's agent makes it, with the label of that cluster."""
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"generateName": f"{labelled}-", "labels": {identity.CLUSTER_LABEL: labelled}},
        "spec": {"request": b64encode(csr(cluster, agent)).decode(), "signerName": identity.SIGNER, "usages": list(USAGES)},
    }


@contextmanager
def kept_free(port: int) -> Iterator[None]:
    """A block in which nobody listens at a port but who asks for it by number: no other test is given it meanwhile."""
    with socket.socket() as holding:
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a server has it that begins to listen there
        holding.bind(("127.0.0.1", port))
        yield


def _sign_agent(
    tx: Transaction, issuer: Issuer, cluster: identity.ClusterName, public_key: bytes, left: timedelta
) -> IssuedCertificate:
    agent, ends = identity.AgentId("bcdfg"), tx.now + left
    profile = Profile(
        Purpose.AGENT, identity.agent_subject(cluster, agent), public_key, min(tx.now, ends) - LIFETIMES.backdate, ends
    )
    if ends <= tx.now:  # as one signed long ago: the hub itself signs none that has ended
        return issuer.issue(profile, identity.SerialNumber(pki.random_serial()), tx.now)
    return certificates.sign(tx, issuer, profile, CertificateHolder(cluster=cluster, agent=agent))


def _environment(**more: str) -> Mapping[str, str]:
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME") or name.startswith(programs.FRESH)}
    return {**kept, **more}


async def run(*command: str, **variables: str) -> Said:
    ended = await programs.command(*command, env=_environment(**variables))
    return Said(ended.returncode, ended.stdout, ended.stderr)


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubUnderTest]:
    running = HubUnderTest(tmp_path)
    await running.start()
    yield running
    await running.stop()
