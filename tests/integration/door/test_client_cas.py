"""CAs of others at the HTTPS door: exchanged while it serves, without a connection lost; and what they cannot do."""

import asyncio
import json
from datetime import datetime
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from hub.apiserver.clientca import ClientAuthorityFile
from machinery import pki
from machinery.clock import SystemClock
from machinery.errors import InvalidError
from machinery.identity import Subject
from machinery.kubeconfig import Credential
from machinery.tls import client_context
from tests.fakes.authority import DAY, OtherCA
from tests.integration.door.conftest import HubUnderTest
from tests.integration.door.test_access import CLUSTERS, Visitor, holder


class Guests:
    """A hub with a file of CAs."""

    def __init__(self, hub: HubUnderTest, path: Path) -> None:
        self.hub = hub
        self.path = path
        self.first, self.second = OtherCA("first"), OtherCA("second")
        path.write_bytes(self.first.certificate)

    async def start(self) -> None:
        self.hub.client_cas = (self.path, ("ops",))
        await self.hub.restart()

    @property
    def file(self) -> ClientAuthorityFile:
        way = self.hub.ways_in[0]
        assert isinstance(way, ClientAuthorityFile)
        return way

    async def write(self, *bundle: bytes) -> None:
        self.path.write_bytes(b"".join(bundle))
        await self.file.look()

    def visitor(self, credential: Credential) -> Visitor:
        return Visitor(self.hub, client_context(self.hub.issuer.trust_bundle, credential.chain, credential.key))


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


async def test_a_certificate_of_another_ca_names_its_user(guests: Guests) -> None:
    assert await user_of(guests.visitor(guests.first.issue("carol", "ops"))) == "carol"


async def test_operators_and_agents_of_another_ca_are_none(guests: Guests) -> None:
    assert await user_of(guests.visitor(guests.first.issue("carol", "system:masters"))) == "carol"
    agent = guests.first.issue("system:open-cluster-management:edge1:bcdfg", "system:open-cluster-management:edge1")
    status, answer = await guests.visitor(agent).get(f"{CLUSTERS}/edge1")
    assert (status, "the server gives such names" in answer["message"]) == (401, True)


async def test_cas_are_exchanged_without_a_connection_lost(guests: Guests) -> None:
    hub = guests.hub
    await hub.join("edge1")
    carol, dave = guests.first.issue("carol", "ops"), guests.second.issue("dave", "ops")
    with pytest.raises(aiohttp.ClientError):
        await guests.visitor(dave).get("/version")
    admin = holder(hub, await hub.admin())
    connector = aiohttp.TCPConnector(ssl=admin.context)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"{hub.server}{CLUSTERS}/edge1?watch=1") as watch,
    ):
        assert json.loads(await watch.content.readline())["type"] == "ADDED"
        await guests.write(guests.first.certificate, guests.second.certificate)
        assert [await user_of(guests.visitor(one)) for one in (carol, dave)] == ["carol", "dave"]
        await guests.write(guests.second.certificate)
        with pytest.raises(aiohttp.ClientError):
            await guests.visitor(carol).get("/version")
        assert await user_of(guests.visitor(dave)) == "dave"
        assert (await admin.get(CLUSTERS))[0] == 200, "the hub's own CA stays trusted"
        await hub.store.run(_relabel)
        assert json.loads(await watch.content.readline())["type"] == "MODIFIED"


def _relabel(tx: object) -> None:
    from hub.domain import document as doc  # noqa: PLC0415 - only here
    from hub.domain.change import MANAGED_CLUSTERS, Key  # noqa: PLC0415 - the same
    from hub.services import clusters  # noqa: PLC0415 - the same

    stored = tx.objects.get(MANAGED_CLUSTERS, Key("", "edge1"))  # type: ignore[attr-defined]
    clusters.put(tx, doc.with_metadata(stored.document, labels={"tier": "gold"}), stored, "test")  # type: ignore[arg-type]


async def test_a_connection_that_is_open_is_nobodys_once_its_ca_is_gone(guests: Guests) -> None:
    carol = guests.visitor(guests.first.issue("carol", "ops"))
    connector = aiohttp.TCPConnector(ssl=carol.context, limit=1)
    async with aiohttp.ClientSession(connector=connector) as session:
        async with session.get(guests.hub.server + "/apis") as before:
            assert before.status == 200
            await before.read()
        await guests.write(guests.second.certificate)
        async with session.get(guests.hub.server + "/apis") as after:
            assert after.status == 401


async def test_a_session_that_is_resumed_is_nobodys_once_its_ca_is_gone(guests: Guests) -> None:
    """TLS resumes without looking at the certificate again; the door does look."""
    carol = guests.visitor(guests.first.issue("carol", "ops"))
    assert (await carol.get("/apis"))[0] == 200
    await guests.write(guests.second.certificate)
    for _ in range(2):
        try:
            status, _answer = await carol.get("/apis")
        except aiohttp.ClientError:
            continue
        assert status == 401


@pytest.mark.parametrize("content", [b"", b"no PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
async def test_a_file_that_cannot_be_used_changes_nothing(guests: Guests, content: bytes) -> None:
    carol = guests.first.issue("carol", "ops")
    await guests.write(content)
    assert await user_of(guests.visitor(carol)) == "carol"
    guests.path.unlink()
    await guests.file.look()
    assert await user_of(guests.visitor(carol)) == "carol"


async def test_the_hubs_own_ca_is_no_guest(guests: Guests) -> None:
    await guests.write(guests.second.certificate, guests.hub.issuer.trust_bundle)
    with pytest.raises(aiohttp.ClientError):
        await guests.visitor(guests.second.issue("dave")).get("/version")
    agent = holder(guests.hub, await guests.hub.agent("edge1"))
    await guests.hub.join("edge1")
    assert (await agent.get(f"{CLUSTERS}/edge1"))[0] == 200


async def test_a_hub_does_not_start_with_a_file_that_it_cannot_use(hub: HubUnderTest, tmp_path: Path) -> None:
    path = tmp_path / "none.crt"
    for content in (None, b"no PEM"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InvalidError, match=r"client_ca_file: .*none\.crt"):
            ClientAuthorityFile(path, (), hub.serving, SystemClock())


async def test_a_ca_needs_no_root(guests: Guests) -> None:
    """What is trusted is the CA that signs, whoever has signed it in turn."""
    root, now = OtherCA("root"), SystemClock().now()
    signing, key = ec.generate_private_key(ec.SECP256R1()), pki.generate_key()
    middle = _signed(root, "middle", signing.public_key(), now)
    plan = pki.Plan(Subject("erin"), pki.public_key_of(key), pki.random_serial(), now - DAY / 2, now + DAY)
    pem = signing.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    erin = Credential(pki.Authority(middle, pem).sign(plan), key)
    await guests.write(middle)
    assert await user_of(guests.visitor(erin)) == "erin"


def _signed(root: OtherCA, name: str, key: ec.EllipticCurvePublicKey, now: datetime) -> bytes:
    """A CA's certificate under another CA."""
    above = x509.load_pem_x509_certificate(root.certificate)
    builder = (
        x509.CertificateBuilder(above.subject, _name(name), key, x509.random_serial_number(), now - DAY, now + 2 * DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(True, False, False, False, False, True, True, False, False), critical=True)  # noqa: FBT003
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
    signing = load_pem_private_key(root.key, None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    return builder.sign(signing, SHA256()).public_bytes(Encoding.PEM)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


async def test_an_open_watch_ends_when_its_ca_is_taken_away(guests: Guests) -> None:
    hub = guests.hub
    await hub.join("edge1")
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "ops"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "ops"}],
    }
    admin = holder(hub, await hub.admin())
    assert (await admin.ask("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding))[0] == 201
    await guests.write(guests.first.certificate, guests.second.certificate)
    carol, dave = (guests.visitor(ca.issue(name, "ops")) for ca, name in ((guests.first, "carol"), (guests.second, "dave")))
    watch = f"{hub.server}{CLUSTERS}?watch=1"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=carol.context)) as carols,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=dave.context)) as daves,
        carols.get(watch) as mine,
        daves.get(watch) as theirs,
    ):
        assert [json.loads(await each.content.readline())["type"] for each in (mine, theirs)] == ["ADDED", "ADDED"]
        await guests.write(guests.second.certificate)
        async with asyncio.timeout(10):
            with pytest.raises(aiohttp.ClientError):
                while await mine.content.readline():
                    pass
        assert not theirs.content.at_eof()
