"""The lists at the door: public, checked by openssl and by the library, the same after a restart, and read by hubctl."""

import asyncio
import shutil
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from machinery import kubeconfig
from tests.integration.door.conftest import HubUnderTest, run
from tests.integration.door.test_access import CLUSTERS, holder, nobody


async def fetch(hub: HubUnderTest, path: str, **headers: str) -> tuple[int, bytes, str]:
    connector = aiohttp.TCPConnector(ssl=nobody(hub).context)
    async with aiohttp.ClientSession(connector=connector) as session, session.get(hub.server + path, headers=headers) as answer:
        return answer.status, await answer.read(), answer.headers.get("ETag", "")


def path_of(hub: HubUnderTest, form: str) -> str:
    return f"/crl/{hub.issuer.name.rpartition('/')[2]}.{form}"


async def openssl(*arguments: str | Path) -> tuple[int, str]:
    ended = await run("openssl", *map(str, arguments))
    return ended.code, ended.out + ended.err


async def test_openssl_and_the_library_find_the_list_good_and_the_revoked_certificate_on_it(hub: HubUnderTest) -> None:
    revoked, good = await hub.agent("edge1"), await hub.agent("edge2")
    await hub.join("edge1")
    assert (await hub.hubctl("revoke", "cluster", "edge1", "--reason", "KeyCompromise")).code == 0
    status, der, _ = await fetch(hub, path_of(hub, "crl"))
    found = x509.load_der_x509_crl(der)
    key = x509.load_pem_x509_certificate(hub.issuer.trust_bundle).public_key()
    assert status == 200
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert found.is_signature_valid(key)
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to ask")
    pem, ca = hub.folder / "crl.pem", hub.folder / "bundle.pem"
    pem.write_bytes((await fetch(hub, path_of(hub, "pem")))[1])
    ca.write_bytes(hub.issuer.trust_bundle)
    assert (await openssl("crl", "-in", pem, "-CAfile", ca, "-noout"))[1].strip() == "verify OK"
    text = (await openssl("crl", "-in", pem, "-noout", "-text"))[1]
    for said in ("Key Compromise", "X509v3 CRL Number", "X509v3 Authority Key Identifier", "Next Update", "ecdsa-with-SHA256"):
        assert said in text
    for path, code, told in ((revoked, 2, "certificate revoked"), (good, 0, "OK")):
        leaf = hub.folder / "leaf.pem"
        leaf.write_bytes(kubeconfig.read_kubeconfig(path).require_credential().chain)
        outcome = await openssl("verify", "-CAfile", ca, "-CRLfile", pem, "-crl_check", "-purpose", "sslclient", leaf)
        assert outcome[0] == code, outcome
        assert told in outcome[1]


async def test_lists_are_public_and_nothing_else_is(hub: HubUnderTest) -> None:
    status, body, _ = await fetch(hub, "/crl")
    assert status == 200
    assert path_of(hub, "crl").encode() in body
    for path in ("/crl/ffffffffffffffff.crl", f"{path_of(hub, 'exe')}", "/crl/../version/x", "/crlx"):
        assert (await fetch(hub, path))[0] in (403, 404), path
    assert (await fetch(hub, CLUSTERS))[0] == 403
    assert (await nobody(hub).ask("POST", path_of(hub, "crl")))[0] == 405
    assert (await nobody(hub).ask("DELETE", "/crl"))[0] == 405


async def test_the_list_is_the_same_until_something_is_revoked_and_after_a_restart(hub: HubUnderTest) -> None:
    _, before, tag = await fetch(hub, path_of(hub, "crl"))
    assert (await fetch(hub, path_of(hub, "crl"), **{"If-None-Match": tag}))[0] == 304
    await hub.restart()
    assert (await fetch(hub, path_of(hub, "crl")))[1] == before
    await hub.join("edge1")
    agent = await hub.agent("edge1")
    assert (await hub.hubctl("revoke", "cluster", "edge1")).code == 0
    async with asyncio.timeout(5):
        while (await fetch(hub, path_of(hub, "crl")))[1] == before:  # noqa: ASYNC110 - the door tells nobody
            await asyncio.sleep(0.05)
    assert (await holder(hub, agent).get(f"{CLUSTERS}/edge1"))[0] == 401


async def test_hubctl_gets_the_list_in_each_form(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    await hub.agent("edge1")
    await hub.hubctl("revoke", "cluster", "edge1", "--reason", "Superseded")
    text = (await hub.hubctl("get", "crl")).out
    assert hub.issuer.name in text
    assert "superseded" in text
    pem = (await hub.hubctl("get", "crl", "-o", "pem")).out
    assert x509.load_pem_x509_crl(pem.encode()).issuer == x509.load_pem_x509_certificate(hub.issuer.trust_bundle).subject
    assert "is for revocation lists" in (await hub.hubctl("get", "clusters", "-o", "pem")).err
    assert "has no CA" in (await hub.hubctl("get", "crl", "ffff")).err
