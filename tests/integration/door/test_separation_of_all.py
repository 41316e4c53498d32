"""Nobody opens another cluster at this door: every resource and verb of discovery, every other path, with every credential.

What is tried comes from discovery, so that a new kind, version, verb or subresource is tried the day it is served. Nothing may
open but what is named here; a new path without a resource that is not named here fails.
"""

import asyncio
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from hub.domain.certificate import Holder, Profile, Purpose
from hub.domain.request import CLUSTER_LABEL
from hub.ports import Transaction
from hub.services import certificates
from machinery import pki
from machinery.identity import AddOnName, AgentId, ClusterName, Subject, addon_subject, recovery_subject
from tests.integration.door.conftest import LIFETIMES, HubUnderTest
from tests.integration.door.test_access import Visitor, holder, nobody
from tests.integration.door.test_separation import LEASES, OTHER, OWN_EVERYWHERE, Place, accept, places, signed

FORBIDDEN, UNKNOWN = 403, 401
CLUSTERS = "cluster.open-cluster-management.io"
LOGINS = {("login.open-cluster-management.io", "tokencredentialrequests")}
"""What somebody asks who is nobody yet; there is nothing in it to list."""
PUBLIC = {"/version", "/healthz", "/livez", "/readyz", "/crl"}
"""Open to whoever comes: they tell of no cluster. Below /livez and its like too, as Kubernetes has it."""
KNOWN = {"/", "/api", "/apis", "/openapi/v2", "/openapi/v3"}
"""What is served to whoever is known, and tells what could be asked: discovery."""
COUNTED = {"/metrics"}
"""What is open to who looks after the hub, and to nobody else here."""
PARTS = ("/healthz/", "/livez/", "/readyz/", "/api/", "/apis/", "/openapi/v3/")
"""What lies below one of these is as open as that."""


@dataclass(frozen=True)
class Asker:
    """Somebody, and how the door refuses him. `may`: what opens all the same, because it is nobody's cluster."""

    name: str
    context: ssl.SSLContext
    refused: int = FORBIDDEN
    may: frozenset[tuple[str, str]] = field(default_factory=lambda: frozenset(OWN_EVERYWHERE))
    """Group and resource of creations that are answered."""


async def certificate(hub: HubUnderTest, purpose: Purpose, subject: Subject, whose: Holder) -> Visitor:
    key = pki.generate_key()

    def sign(tx: Transaction) -> Any:
        ends = tx.now + LIFETIMES.bootstrap
        profile = Profile(purpose, subject, pki.public_key_of(key), tx.now - LIFETIMES.backdate, ends)
        return certificates.sign(tx, hub.issuer, profile, whose)

    return holder(hub, hub.kubeconfig(f"{purpose}-asker", await hub.store.run(sign), key))


@pytest.fixture
async def askers(hub: HubUnderTest) -> list[Asker]:
    edge1, agent = ClusterName("edge1"), AgentId("bcdfg")
    for name in ("edge1", OTHER):
        await hub.join(name)
        await accept(hub, name)
    await hub.request(OTHER, "theirs")
    file = hub.folder / "edge7.kubeconfig"
    await hub.hubctl("create", "bootstrap-kubeconfig", "--cluster", "edge7", "-o", str(file), "--allow-loopback")
    of_addon = Holder(cluster=edge1, addon=AddOnName("metrics"))
    addon = await certificate(hub, Purpose.ADDON, addon_subject(edge1, AddOnName("metrics"), "agent"), of_addon)
    of_agent = Holder(cluster=edge1, agent=agent)
    recovery = await certificate(hub, Purpose.RECOVERY, recovery_subject(edge1, agent), of_agent)
    guest = await certificate(hub, Purpose.LOGIN, Subject("guest"), Holder())
    await hub.join("edge3")
    revoked = await hub.agent("edge3")
    await hub.revoke(revoked)
    reviews = frozenset(pair for pair in OWN_EVERYWHERE if pair[1] != "certificatesigningrequests")
    joins = OWN_EVERYWHERE | {(CLUSTERS, "managedclusters")}
    return [
        Asker("agent", (await signed(hub, "bcdfg")).context),
        Asker("add-on", addon.context, may=reviews),
        Asker("recovery", recovery.context, UNKNOWN, may=frozenset()),
        Asker("bootstrap", holder(hub, file).context, may=frozenset(joins)),
        Asker("login", guest.context, may=reviews),
        Asker("revoked", holder(hub, revoked).context, UNKNOWN, may=frozenset()),
        Asker("nobody", nobody(hub).context, may=frozenset()),
    ]


async def statuses(hub: HubUnderTest, asker: Asker, asked: Iterator[tuple[str, str]]) -> list[tuple[str, str, int]]:
    connector = aiohttp.TCPConnector(ssl=asker.context)
    found = []
    async with aiohttp.ClientSession(hub.server, connector=connector) as session:
        for method, path in asked:
            async with session.request(method, path, json={}) as response:
                found.append((method, path, response.status))
    return found


def of_others(served: list[Place], asker: Asker) -> Iterator[tuple[str, str]]:
    for place in served:
        if asker.name == "nobody" and (place.group, place.name) in LOGINS:
            continue
        for method, path in place.requests:
            if method != "POST" or (place.group, place.name) not in asker.may:
                yield method, path


async def test_no_resource_of_discovery_opens_another_cluster_to_anybody(hub: HubUnderTest, askers: list[Asker]) -> None:
    served = await places(holder(hub, await hub.admin()))
    assert {place.name for place in served} >= {"managedclusters", "revocations", "secrets", "managedclusters/move"}
    before = await stored(hub)
    opened = []
    for asker in askers:
        found = await statuses(hub, asker, of_others(served, asker))
        assert len(found) > 150
        opened += [(asker.name, *each) for each in found if each[2] != asker.refused]
    assert "\n".join(map(str, opened)) == ""
    assert await stored(hub) == before


async def stored(hub: HubUnderTest) -> list[Any]:
    """All objects there are, but for what the hub itself notes."""
    admin = holder(hub, await hub.admin())
    found = []
    for path in ("/apis/cluster.open-cluster-management.io/v1/managedclusters", LEASES.format(OTHER)):
        found += (await admin.get(path))[1]["items"]
    return found


async def test_no_other_path_tells_anybody_anything_but_what_is_public(hub: HubUnderTest, askers: list[Asker]) -> None:
    listed = (await holder(hub, await hub.admin()).get("/"))[1]["paths"]
    unexpected = [path for path in listed if path not in PUBLIC | KNOWN | COUNTED and not path.startswith(PARTS)]
    assert unexpected == [], "a new path needs an expectation here"
    tried = sorted({*PUBLIC, *KNOWN, *COUNTED, *listed, "/debug/pprof", "/logs", "/configz", "/statusz"})
    for asker in askers:
        answers = {path: status for _, path, status in await statuses(hub, asker, (("GET", path) for path in tried))}
        for path, status in answers.items():
            served = path == "/crl" or (asker.refused == FORBIDDEN and path in PUBLIC)
            assert status != 200 or served or (asker.name != "nobody" and _is_discovery(path)), (asker.name, path)
            assert status == 200 or not served, (asker.name, path, status)
            if asker.refused == UNKNOWN and path != "/crl":
                assert status == UNKNOWN, (asker.name, path, status)


def _is_discovery(path: str) -> bool:
    return path in KNOWN or path.startswith(PARTS)


async def test_lists_and_watches_hold_nothing_of_another_cluster(hub: HubUnderTest, askers: list[Asker]) -> None:
    agent = next(asker for asker in askers if asker.name == "agent")
    await hub.request("edge1", "mine")
    served = await places(holder(hub, await hub.admin()))
    connector = aiohttp.TCPConnector(ssl=agent.context)
    seen = 0
    async with aiohttp.ClientSession(hub.server, connector=connector) as session:
        answers = await asyncio.gather(*(_items(session, path) for place in served for path in _own(place)))
    for path, items in answers:
        for item in items:
            metadata = item["metadata"]
            own = {metadata.get("namespace"), metadata["name"], (metadata.get("labels") or {}).get(CLUSTER_LABEL)}
            assert "edge1" in own, (path, metadata)
            assert OTHER not in own, (path, metadata)
            seen += 1
    assert seen >= 6, "its cluster, its lease and its request, listed and watched"


def _own(place: Place) -> Iterator[str]:
    """Every way to list and watch that may be open to an agent of edge1, and those that must not be."""
    if "/" in place.name:
        return
    roots = [f"{place.prefix}/{place.name}"] + [f"{place.prefix}/namespaces/edge1/{place.name}"] * place.namespaced
    for verb in {"list", "watch"} & set(place.verbs):
        watch = "watch=1&timeoutSeconds=1&" if verb == "watch" else ""
        for root in roots:
            for selector in ("", "fieldSelector=metadata.name%3Dedge1", f"labelSelector={CLUSTER_LABEL}%3Dedge1"):
                yield f"{root}?{watch}{selector}"


async def _items(session: aiohttp.ClientSession, path: str) -> tuple[str, list[Any]]:
    async with session.get(path) as response:
        text = await response.text()
        if response.status != 200:
            return path, []
        if "watch=1" not in path:
            return path, list(json.loads(text).get("items") or ())
        events = [json.loads(line) for line in text.splitlines() if line.strip()]
        return path, [event["object"] for event in events if event["type"] != "BOOKMARK"]
