"""Certificates that end early: revocations and their lists, orders to renew, and changes of the CA."""

import asyncio
import json
import shutil
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from hub.api.certificateauthorities.authority import AuthorityOrder, AuthorityRecord, Phase
from hub.api.certificates import Lifetimes
from hub.api.managedclusters import cluster as cluster_rules
from hub.api.managedclusters.agent_annotations import RENEW
from hub.api.meta import document as doc
from hub.issuer.local import make_authority
from hub.registry.certificateauthorities import service as authorities
from hub.registry.certificateauthorities.service import NewAuthority
from hub.registry.managedclusters import service as clusters
from hubctl.errors import DONE, FAILED, INTERRUPTED, MISUSED, NOT_FOUND, TIMED_OUT
from machinery.client import kubeconfig
from machinery.identity import ClusterName
from tests.integration.https_door.conftest import CLUSTERS, HubUnderTest, admin_of, holder, nobody, run

REVOCATIONS = "/apis/hub.open-cluster-management.io/v1alpha1/revocations"
KIND = {"apiVersion": "hub.open-cluster-management.io/v1alpha1", "kind": "Revocation"}


async def revoke(hub: HubUnderTest, name: str = "r1", **spec: str) -> tuple[int, dict[str, object]]:
    status, answer = await (await admin_of(hub)).ask("POST", REVOCATIONS, {**KIND, "metadata": {"name": name}, "spec": spec})
    return status, dict(answer)


async def test_hubctl_revokes_a_cluster_and_says_what_ended_and_how_it_comes_back(hub: HubUnderTest) -> None:
    for name in ("edge1", "edge2"):
        await hub.join(name)
    agent, other = await hub.agent("edge1"), await hub.agent("edge2")
    done = await hub.output("hubctl revoke cluster edge1 --reason keycompromise -m 'laptop stolen'")
    assert done.startswith('cluster "edge1" revoked: 1 certificate (revocation edge1-')
    assert "hubctl create bootstrap-kubeconfig --cluster edge1" in done
    titles, row = (await hub.output("hubctl get revocations")).splitlines()
    assert titles.split() == ["NAME", "SUBJECT", "REASON", "BY", "ENDED", "MESSAGE", "AGE"]
    assert ('cluster "edge1"' in row, "laptop stolen" in row) == (True, True)
    status, answer = await holder(hub, agent).get(f"{CLUSTERS}/edge1")
    assert (status, answer["reason"], "KeyCompromise" in answer["message"]) == (401, "Unauthorized", True)
    assert answer["details"]["causes"][0]["reason"] == "CertificateRevoked"

    (record,) = await hub.store.read(lambda tx: tx.certificates.of_cluster(ClusterName("edge2")))
    text = f"{record.serial:X}"
    await hub.output("hubctl revoke serial", ":".join(text[place : place + 2] for place in range(0, len(text), 2)))
    assert (await holder(hub, other).get(f"{CLUSTERS}/edge2"))[0] == 401

    await hub.runs(
        ("hubctl revoke cluster nobody", NOT_FOUND, 'cluster "nobody" not found'),
        ("hubctl revoke agent edge1 nobody", NOT_FOUND, 'agent "nobody" of cluster "edge1" not found'),
        ("hubctl revoke serial 5f", NOT_FOUND, "no certificate with serial 5f"),
        ("hubctl revoke serial five", MISUSED, "is not a serial number"),
        ("hubctl revoke bootstrap-credential nobody", NOT_FOUND, 'bootstrap credential "nobody" not found'),
    )
    for spec, message in (
        ({}, "exactly one of cluster, serial and bootstrapCredential"),
        *(({"cluster": "edge1", "serial": "5"}, "exactly one of"), ({"agent": "a"}, "exactly one of")),
        *(({"cluster": "edge1", "reason": "Bored"}, "spec.reason: Unsupported value"), ({"serial": "XYZ"}, "spec.serial")),
    ):
        status, answer = await revoke(hub, **spec)
        assert (status, message in str(answer["message"])) == (422, True), answer


async def test_an_agent_of_a_denied_cluster_gets_the_reason_as_a_cause(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    for accepted in (True, False):
        await hub.accept("edge1", accepted=accepted)
    agent = holder(hub, await hub.agent("edge1"))
    await hub.store.run(clusters.set_condition, ClusterName("edge1"), cluster_rules.ACCEPTED, "test")
    status, answer = 0, dict[str, Any]()
    async with asyncio.timeout(10):
        while not answer.get("details", {}).get("causes"):
            status, answer = await agent.get("/apis/coordination.k8s.io/v1/namespaces/edge1/leases")
    assert (status, answer["details"]["causes"][0]["reason"]) == (403, "ClusterDenied")
    assert "hubctl accept edge1" in answer["message"]


async def test_a_watch_of_a_revoked_cluster_ends_and_the_revocation_stays(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    agent = holder(hub, await hub.agent("edge1"))
    body = {**KIND, "metadata": {"name": "r1"}, "spec": {"cluster": "edge1"}}
    status, answer = await (await admin_of(hub)).ask("POST", f"{REVOCATIONS}?dryRun=All", body)
    assert (status, answer["status"]["certificatesRevoked"], (await agent.get(f"{CLUSTERS}/edge1"))[0]) == (201, 1, 200)

    own = await admin_of(hub)
    async with (
        agent.watch(f"{CLUSTERS}/edge1?watch=1") as mine,
        own.watch(f"{CLUSTERS}/edge1?watch=1") as others,
        own.watch(f"{REVOCATIONS}?watch=1") as revocations,
    ):
        assert ([await mine.type(), await others.type()], (await revoke(hub, cluster="edge1"))[0]) == (["ADDED", "ADDED"], 201)
        await mine.broken()
        assert others.is_open
        event = await revocations.event()
    assert (event["type"], event["object"]["spec"]["cluster"]) == ("ADDED", "edge1")
    assert event["object"]["status"]["revokedBy"] == "admin"

    for method in ("PUT", "PATCH", "DELETE"):
        assert (await own.ask(method, f"{REVOCATIONS}/r1", {}))[0] == 405, method
    assert (await own.ask("DELETE", REVOCATIONS, {}))[0] == 405


async def fetch(hub: HubUnderTest, path: str, **headers: str) -> tuple[int, bytes, str]:
    connector = aiohttp.TCPConnector(ssl=nobody(hub).context)
    async with aiohttp.ClientSession(connector=connector) as session, session.get(hub.server + path, headers=headers) as answer:
        return answer.status, await answer.read(), answer.headers.get("ETag", "")


def path_of(hub: HubUnderTest, form: str) -> str:
    return f"/crl/{hub.issuer.current.name.rpartition('/')[2]}.{form}"


async def openssl(*arguments: str | Path) -> tuple[int, str]:
    ended = await run("openssl", *map(str, arguments))
    return ended.code, ended.out + ended.err


async def test_lists_are_public_and_the_same_until_something_is_revoked_and_after_a_restart(hub: HubUnderTest) -> None:
    status, body, _ = await fetch(hub, "/crl")
    assert status == 200
    assert path_of(hub, "crl").encode() in body
    for path in ("/crl/ffffffffffffffff.crl", f"{path_of(hub, 'exe')}", "/crl/../version/x", "/crlx"):
        assert (await fetch(hub, path))[0] in (403, 404), path
    assert (await fetch(hub, CLUSTERS))[0] == 403
    assert ((await nobody(hub).ask("POST", path_of(hub, "crl")))[0], (await nobody(hub).ask("DELETE", "/crl"))[0]) == (405, 405)

    _, before, tag = await fetch(hub, path_of(hub, "crl"))
    assert (await fetch(hub, path_of(hub, "crl"), **{"If-None-Match": tag}))[0] == 304
    await hub.restart()
    assert (await fetch(hub, path_of(hub, "crl")))[1] == before
    await hub.join("edge1")
    agent = await hub.agent("edge1")
    await hub.output("hubctl revoke cluster edge1")
    async with asyncio.timeout(5):
        while (await fetch(hub, path_of(hub, "crl")))[1] == before:
            pass
    assert (await holder(hub, agent).get(f"{CLUSTERS}/edge1"))[0] == 401


async def test_openssl_the_library_and_hubctl_read_a_list_with_the_revoked_certificate(hub: HubUnderTest) -> None:
    revoked, good = await hub.agent("edge1"), await hub.agent("edge2")
    await hub.join("edge1")
    await hub.output("hubctl revoke cluster edge1 --reason KeyCompromise")
    await hub.runs(
        ("hubctl get crl", DONE, hub.issuer.current.name),
        ("hubctl get crl", DONE, "keyCompromise"),
        ("hubctl get clusters -o pem", MISUSED, "is for revocation lists"),
        ("hubctl get crl ffff", FAILED, "has no CA"),
    )
    written = await hub.output("hubctl get crl -o pem")
    assert x509.load_pem_x509_crl(written.encode()).issuer == x509.load_pem_x509_certificate(hub.issuer.trust_bundle).subject

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
    for words in ("Key Compromise", "X509v3 CRL Number", "X509v3 Authority Key Identifier", "Next Update", "ecdsa-with-SHA256"):
        assert words in text
    for path, code, message in ((revoked, 2, "certificate revoked"), (good, 0, "OK")):
        leaf = hub.folder / "leaf.pem"
        leaf.write_bytes(kubeconfig.read_kubeconfig(path).require_credential().chain)
        outcome = await openssl("verify", "-CAfile", ca, "-CRLfile", pem, "-crl_check", "-purpose", "sslclient", leaf)
        assert outcome[0] == code, outcome
        assert message in outcome[1]


async def ordered(hub: HubUnderTest, name: str) -> str:
    return doc.annotations((await hub.store.read(clusters.find, ClusterName(name))).document).get(RENEW, "")


async def test_an_operator_has_clusters_renewed_and_sees_when_they_have(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    none = "have no agent with a certificate: there is nothing to renew\n"
    await hub.runs(("hubctl rotate cluster --all --wait", DONE, f"0 clusters are asked to renew within 1m\n1 {none}"))
    await hub.agent("edge1")
    await hub.runs(("hubctl rotate cluster edge1 --within 10m", DONE, 'cluster "edge1" is asked to renew within 10m\n'))
    assert (before := await ordered(hub, "edge1")).endswith("/PT600S")
    waiting = await hub.hubctl("rotate cluster edge1 --wait --timeout 50ms")
    assert (waiting.code, "0 of 1 renewed" in waiting.out, "edge1" in waiting.err) == (TIMED_OUT, True, True)
    before = await ordered(hub, "edge1")
    order = await hub.start_hubctl("rotate", "cluster", "edge1", "--wait", "--timeout", "30s")
    async with asyncio.timeout(20):
        while await ordered(hub, "edge1") == before:
            pass
    await hub.agent("edge1")
    out, err = await order.process.communicate()
    assert (order.process.returncode, b"1 of 1 renewed" in out) == (DONE, True), err

    for name in ("edge2", "edge3"):
        await hub.join(name)
    await hub.agent("edge1")
    await hub.runs(("hubctl rotate cluster --all", DONE, f"1 clusters are asked to renew within 1m\n2 {none}"))
    assert all([await ordered(hub, name) for name in ("edge1", "edge2", "edge3")])
    await hub.join("edge4")
    await hub.runs(("hubctl rotate cluster edge4", FAILED, "managedclusters/rotate"), path=await hub.agent("edge4"))
    await hub.runs(
        ("hubctl rotate cluster nobody", NOT_FOUND, ""),
        ("hubctl rotate cluster edge4 --within soon", MISUSED, ""),
        ("hubctl rotate cluster edge4 --within 30d", FAILED, "spec.withinSeconds"),
    )
    assert await ordered(hub, "edge4") == ""


async def begun(hub: HubUnderTest) -> str:
    return str((await hub.store.run(authorities.adopt, NewAuthority(hub.issuer.trust_bundle, None))).id)


async def every(hub: HubUnderTest) -> dict[str, AuthorityRecord]:
    return {each.id: each for each in await hub.store.read(lambda tx: tx.authorities.all())}


async def test_ca_status_shows_phase_certificates_and_what_is_waited_for(hub: HubUnderTest) -> None:
    first = await begun(hub)
    await hub.agent("edge1")
    shown = await hub.output("hubctl ca status")
    assert [line.split()[:2] for line in shown.splitlines()] == [["NAME", "PHASE"], [first, "Issuing"]]
    one = json.loads(await hub.output(f"hubctl get ca {first} -o json"))["status"]
    assert (one["signed"]["agent"], one["signed"]["operator"] >= 1) == (1, True)
    assert (one["phase"], one["compromised"], one["waitsFor"]) == ("Issuing", False, [])
    assert one["certificate"].encode() == hub.issuer.trust_bundle
    assert "PRIVATE" not in json.dumps(one)

    await hub.join("edge1")
    await hub.accept("edge1")
    now = (await every(hub))[first]
    outgoing = replace(now, phase=Phase.OUTGOING, since=now.since + timedelta(seconds=1))
    await hub.store.run(lambda tx: tx.authorities.put(outgoing))
    await hub.runs(
        ("hubctl ca status", DONE, f"{first} waits for 1 absent agents that hold a certificate of it"),
        ("hubctl ca status", DONE, "certificates of it that operators hold"),
    )


async def test_before_a_ca_is_given_up_it_is_said_who_needs_a_new_bootstrap_credential(hub: HubUnderTest) -> None:
    first = await begun(hub)
    await hub.join("edge1")
    await hub.agent("edge1")
    await hub.accept("edge1")
    kept = await hub.hubctl("ca rotate --compromised")
    assert (kept.code, "1 agents will need a new bootstrap credential:\n  edge1\n" in kept.out) == (INTERRUPTED, True)
    assert (await every(hub))[first].order is None, "asking is not doing"
    await hub.output("hubctl ca rotate --compromised --within 5s --yes")
    one = (await every(hub))[first]
    assert (one.order, one.ends_at is None, one.within) == (AuthorityOrder.COMPROMISED, False, timedelta(seconds=5))
    await hub.output("hubctl ca rotate --compromised --within 1h --yes")
    again = (await every(hub))[first]
    assert (again.ends_at, again.within) == (one.ends_at, one.within), "it never gets more time"


async def test_ca_rotation_is_ordered_by_operators_and_never_by_agents(hub: HubUnderTest) -> None:
    first = await begun(hub)
    orders = ("rotate", "proceed x", "rotate --compromised --yes")
    await hub.runs(*((f"hubctl ca {order}", FAILED, "cannot") for order in orders), path=await hub.agent("edge1"))
    assert all(each.order is None for each in (await every(hub)).values())

    for _ in range(2):
        await hub.output("hubctl ca rotate")
        one = (await every(hub))[first]
        assert (one.order, one.ordered_by, one.phase) == (AuthorityOrder.ROTATE, "admin", Phase.ISSUING)  # once or twice
    await hub.runs((f"hubctl ca proceed {first}", FAILED, "it has no next step"))
    made, _key = make_authority(Lifetimes(), (await hub.store.read(lambda tx: tx.now)))
    second = (await hub.store.run(authorities.propose, NewAuthority(made.certificate, None))).id
    await hub.output(f"hubctl ca proceed {second}")
    assert (await every(hub))[second].order is AuthorityOrder.PROCEED
    await hub.runs(("hubctl ca rotate", FAILED, "is still Distributing"), ("hubctl ca proceed 0123456789abcdef", NOT_FOUND, ""))
