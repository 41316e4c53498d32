"""The audit of the HTTPS door: who did what, found again on the API, by hubctl, and never a secret in it."""

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hub.api.auditrecords import AuditLevel, AuditQuery, AuditRecord, read_record
from hub.ports import Transaction
from hubctl.errors import DONE, MISUSED
from machinery.runtime.clock import SystemClock
from tests.integration.https_door.conftest import CLUSTERS, MERGE, HubUnderTest, admin_of, holder, hub_with, nobody

GROUP = "hub.open-cluster-management.io/v1alpha1"
RECORDS = f"/apis/{GROUP}/auditrecords"
SECRET = "canary-3f1c9a7e-never-seen"  # noqa: S105 - what must not be found
ALL = "{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: RequestResponse}]}"


def cluster(name: str) -> dict[str, Any]:
    return {
        "apiVersion": CLUSTERS.removeprefix("/apis/").rpartition("/")[0],
        "kind": "ManagedCluster",
        "metadata": {"name": name},
    }


@pytest.fixture
async def everything(tmp_path: Path) -> AsyncIterator[HubUnderTest]:
    """A hub that records all requests with their bodies, as far as it ever does."""
    file = tmp_path / "policy.yaml"
    file.write_text(ALL)
    async with hub_with(tmp_path, audit_policy_file=file) as hub:
        yield hub


async def records(hub: HubUnderTest) -> list[AuditRecord]:
    """All that is remembered by now."""
    await hub.access.auditor.flush()

    def stored(tx: Transaction) -> list[bytes]:
        return [entry.document for entry in tx.audit.find(AuditQuery())]

    return [record for document in await hub.store.read(stored) if (record := read_record(document))]


async def test_each_change_leaves_one_record_that_says_who_what_and_how(hub: HubUnderTest) -> None:
    visitor = await admin_of(hub)
    agent = holder(hub, await hub.agent("edge"))
    await visitor.ask("POST", CLUSTERS, cluster("edge"), **{"User-Agent": "test/1", "Audit-ID": "my-id"})
    await visitor.get(f"{CLUSTERS}/edge")
    await agent.ask("DELETE", f"{CLUSTERS}/edge")
    await visitor.ask("DELETE", f"{CLUSTERS}/missing")
    created, forbidden, missing = await records(hub)
    assert (created.verb, created.audit_id, created.user_agent, created.level) == (
        "create",
        "my-id",
        "test/1",
        AuditLevel.REQUEST,
    )
    assert created.user is not None
    assert (created.user.username, "system:masters" in created.user.groups) == ("admin", True)
    assert created.object_ref is not None
    assert (created.object_ref.resource, created.object_ref.name) == ("managedclusters", "edge")
    assert created.response_status is not None
    assert (created.response_status.code, created.source_ips) == (201, ("127.0.0.1",))
    assert json.loads(bytes(created.request_object))["metadata"] == {"name": "edge"}
    assert created.annotations["authorization.k8s.io/decision"] == "allow"
    assert created.received is not None
    assert created.received <= created.at
    assert forbidden.annotations["authorization.k8s.io/decision"] == "forbid"
    assert forbidden.response_status is not None
    assert (forbidden.response_status.code, forbidden.response_status.reason) == (403, "Forbidden")
    assert forbidden.user is not None
    assert forbidden.user.username == "system:open-cluster-management:edge:bcdfg"
    assert missing.response_status is not None
    assert missing.response_status.code == 404

    await nobody(hub).ask("POST", CLUSTERS, cluster("edge"), Authorization=f"Bearer {SECRET}")
    await (await admin_of(hub)).ask("POST", f"{CLUSTERS}?timeout=soon", cluster("edge"))
    *_, unknown, malformed = await records(hub)
    assert unknown.response_status is not None
    assert (unknown.response_status.code, unknown.user and unknown.user.username) == (401, "system:anonymous")
    assert malformed.response_status is not None
    assert malformed.response_status.code == 400

    await visitor.ask("POST", CLUSTERS, cluster("edge"), **{"Impersonate-User": "bob", "Impersonate-Group": "system:masters"})
    *_, record = await records(hub)
    assert record.user is not None
    assert record.impersonated_user is not None
    assert (record.user.username, record.impersonated_user.username) == ("admin", "bob")


async def test_watches_timeouts_and_token_hashes_are_recorded(everything: HubUnderTest) -> None:
    visitor = await admin_of(everything)
    watch = f"{everything.server}{CLUSTERS}?watch=1&timeoutSeconds=1"
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=visitor.context)) as session,
        session.get(watch) as response,
    ):
        answered = SystemClock().now()
        await response.read()
    began, ended = await records(everything)
    assert (began.stage, ended.stage, began.audit_id) == ("ResponseStarted", "ResponseComplete", ended.audit_id)
    assert (began.verb, began.at <= answered, began.received) == ("watch", True, ended.received)
    assert ended.received is not None
    assert ended.at - ended.received > timedelta(seconds=0.9)

    status, _ = await visitor.get(f"{CLUSTERS}?timeout=50ms&resourceVersion=999999&resourceVersionMatch=NotOlderThan")
    *_, record = await records(everything)
    assert record.response_status is not None
    assert (status, record.response_status.code, record.response_status.reason) == (504, 504, "Timeout")

    await nobody(everything).ask("GET", CLUSTERS, Authorization=f"Bearer {SECRET}")
    *_, record = await records(everything)
    assert record.annotations["authentication.kubernetes.io/token-hash"].startswith("SHA256=")
    assert SECRET not in repr(record)


async def test_records_are_found_by_fields_and_in_pages_and_cannot_be_written(hub: HubUnderTest) -> None:
    visitor = await admin_of(hub)
    for name in ("a", "b", "c"):
        await visitor.ask("POST", CLUSTERS, cluster(name))
    await visitor.ask("DELETE", f"{CLUSTERS}/b")
    await hub.access.auditor.flush()

    async def found(query: str = "") -> list[str]:
        _, answer = await visitor.get(f"{RECORDS}?{query}")
        return [f"{item['verb']} {item['objectRef']['name']}" for item in answer["items"]]

    assert await found() == ["create a", "create b", "create c", "delete b"]
    assert await found("fieldSelector=verb=delete") == ["delete b"]
    assert await found("fieldSelector=name=b,verb!=delete") == ["create b"]
    assert await found("fieldSelector=user=nobody") == []
    assert await found("fieldSelector=resource=managedclusters,namespace=,user=admin,name=c") == ["create c"]
    assert await found("labelSelector=a=b") == []
    _, whole = await visitor.get(RECORDS)
    third = whole["items"][2]
    assert await found(f"fieldSelector=since={third['stageTimestamp']}") == ["create c", "delete b"]
    assert await found(f"fieldSelector=until={third['stageTimestamp']}") == ["create a", "create b", "create c"]
    assert await found(f"fieldSelector=metadata.name={third['metadata']['name']}") == ["create c"]
    assert (await visitor.get(f"{RECORDS}?fieldSelector=since=yesterday"))[0] == 400
    assert (await visitor.get(f"{RECORDS}?fieldSelector=colour=red"))[0] == 400
    _, page = await visitor.get(f"{RECORDS}?limit=3")
    _, rest = await visitor.get(f"{RECORDS}?limit=3&continue={page['metadata']['continue']}")
    assert [*page["items"], *rest["items"]] == whole["items"]
    assert "continue" not in rest["metadata"]
    status, one = await visitor.get(f"{RECORDS}/{third['metadata']['name']}")
    assert (status, one) == (200, third)
    assert (await visitor.get(f"{RECORDS}/{third['metadata']['name'].replace('20', '19', 1)}"))[0] == 404
    for method in ("PUT", "PATCH", "DELETE"):
        assert (await visitor.ask(method, f"{RECORDS}/{third['metadata']['name']}", {}))[0] == 405
    assert (await visitor.ask("POST", RECORDS, {}))[0] == 405
    assert (await holder(hub, await hub.agent("a")).get(RECORDS))[0] == 403


async def test_hubctl_shows_who_did_what(hub: HubUnderTest) -> None:
    visitor = await admin_of(hub)
    await visitor.ask("POST", CLUSTERS, cluster("edge"))
    await visitor.ask("DELETE", f"{CLUSTERS}/edge")
    await hub.access.auditor.flush()
    lines = (await hub.output("hubctl audit")).splitlines()
    assert lines[0].split() == ["TIME", "USER", "VERB", "OBJECT", "NAMESPACE", "CODE"]
    assert [line.split()[1:] for line in lines[1:]] == [
        ["admin", "create", "managedclusters/edge", "201"],
        ["admin", "delete", "managedclusters/edge", "200"],
    ]
    chosen = await hub.output("hubctl audit --verb=delete --resource=managedclusters --user=admin --since=1h -o wide")
    assert (len(chosen.splitlines()), "AUDIT-ID" in chosen) == (2, True)
    assert [item["verb"] for item in json.loads(await hub.output("hubctl audit --limit=1 -o json"))["items"]] == ["create"]
    await hub.runs(
        ("hubctl audit --until=2020-01-01T00:00:00Z", DONE, "no audit record"),
        ("hubctl audit --since=yesterday", MISUSED, "neither a duration"),
    )


async def test_the_record_of_a_change_is_stored_with_it_and_a_dry_run_is_marked(hub: HubUnderTest) -> None:
    """Nothing is flushed before the look: a kill right after the answer would lose nothing of it."""
    visitor = await admin_of(hub)

    async def stored() -> list[AuditRecord]:
        found = await hub.store.read(lambda tx: tx.audit.find(AuditQuery()))
        return [each for entry in found if (each := read_record(entry.document))]

    for method, path, body, code in (
        ("POST", CLUSTERS, cluster("edge"), 201),
        ("PATCH", f"{CLUSTERS}/edge", {"spec": {"hubAcceptsClient": True}}, 200),
        ("DELETE", f"{CLUSTERS}/edge", None, 200),
    ):
        status, answer = await visitor.ask(method, path, body, **(MERGE if method == "PATCH" else {}))
        *_, last = await stored()
        assert (status, last.response_status and last.response_status.code) == (code, code)
        assert last.object_ref is not None
        assert last.object_ref.name == "edge"
        if method == "POST":
            assert last.object_ref.uid == answer["metadata"]["uid"]
            assert json.loads(bytes(last.request_object))["metadata"] == {"name": "edge"}
    await visitor.ask("POST", f"{CLUSTERS}?dryRun=All", cluster("other"))
    assert len(await stored()) == 3
    assert len(await records(hub)) == 4
    shown = await hub.hubctl("audit", "--verb=create")
    assert [line.split()[2:4] for line in shown.out.splitlines()[1:]] == [
        ["create", "managedclusters/edge"],
        ["create", "(dry"],
    ]
