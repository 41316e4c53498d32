"""The console: its files and their headers, read-only mode, and `hubctl console` between a browser and the hub."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from hub.extensions.console import MARK
from hub.extensions.console.files import read_files
from hub.ports import BACKUP_MADE
from hubctl.client.console_proxy import SECRET
from hubctl.errors import FAILED, NOT_WELL
from tests.e2e.processes import until
from tests.integration.https_door.conftest import CLUSTERS, REQUESTS, HubUnderTest, Running, admin_of, hub_with, nobody

REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
SPEC = {"resourceAttributes": {"verb": "list", "group": "cluster.open-cluster-management.io", "resource": "managedclusters"}}
BOOKMARKS = f"{CLUSTERS}?watch=1&allowWatchBookmarks=true"


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[HubUnderTest]:
    async with hub_with(tmp_path, console="on") as running:
        yield running


async def test_files_are_public_and_only_listed_ones_are_served_under_a_strict_policy(
    hub: HubUnderTest, tmp_path: Path
) -> None:
    async with nobody(hub).session() as session:

        async def get(path: str, method: str = "GET", **headers: str) -> aiohttp.ClientResponse:
            # the path as it is written: aiohttp would resolve dots
            url = URL(f"{hub.server}{path}", encoded=True)
            return await session.request(method, url, headers=headers, allow_redirects=False)

        config = await get("/console/config.json")
        shown = {"mode": "on", "version": await _version(hub), "groupSuffix": "open-cluster-management.io"}
        assert await config.json() == shown
        page, unzipped = await get("/console/"), await get("/console/index.html", **{"Accept-Encoding": "identity"})
        assert (page.status, page.headers["Content-Encoding"], "Content-Encoding" in unzipped.headers) == (200, "gzip", False)
        assert await page.text() == await unzipped.text()
        for answer in (config, page):
            policy = dict(part.partition(" ")[::2] for part in answer.headers["Content-Security-Policy"].split("; "))
            strict = {"default-src": "'none'", "script-src": "'self'", "connect-src": "'self'", "frame-ancestors": "'none'"}
            assert strict.items() <= policy.items()
            assert policy["require-trusted-types-for"] == "'script'"
            assert not {"unsafe-inline", "unsafe-eval", "*", "data:", "blob:"} & set(" ".join(policy.values()).split())
            assert (answer.headers["X-Content-Type-Options"], answer.headers["Referrer-Policy"]) == ("nosniff", "no-referrer")
            again = await get(answer.url.path, **{"If-None-Match": answer.headers["ETag"]})
            assert (again.status, await again.read()) == (304, b"")
        assert {page.content_type, config.content_type} == {"text/html", "application/json"}
        assert ((await get("/console/", "HEAD")).status, (await get("/console/", "POST")).status) == (200, 405)
        outside = "../version", "%2e%2e/version", "..%2f__init__.py", "/etc/passwd"
        for path in (*outside, "nothing", "files.py", "static/index.html"):
            assert (await get(f"/console/{path}")).status == 404, path
        for path, accept, status in (("/console", "", 302), ("/", "text/html,*/*", 302), ("/", "*/*", 403)):
            answer = await get(path, Accept=accept)
            assert (answer.status, answer.headers.get("Location")) == (status, "/console/" if status == 302 else None)
    folder = tmp_path / "files"
    (folder / "vendor").mkdir(parents=True)
    for name in ("index.html", "vendor/a.js", "vendor/LICENSE", "b.py"):
        (folder / name).touch()
    assert sorted(read_files(folder)) == ["index.html", "vendor/a.js"]


async def _version(hub: HubUnderTest) -> str:
    return str((await nobody(hub).get("/version"))[1]["gitVersion"]).partition("+muster.")[2]


async def test_a_read_only_console_may_read_and_review_but_not_write(tmp_path: Path) -> None:
    async with hub_with(tmp_path, console="read-only") as hub:
        admin = await admin_of(hub)
        await hub.join("edge1")
        patch = {"metadata": {"labels": {"a": "b"}}}
        for method, path, body, status in (
            ("GET", CLUSTERS, None, 200), ("POST", REVIEW, {"spec": SPEC}, 201), ("DELETE", f"{CLUSTERS}/edge1", None, 403),
            *(("PATCH", f"{CLUSTERS}/edge1{query}", patch, 403) for query in ("", "?dryRun=All")),
            ("POST", REQUESTS, {}, 403), ("POST", f"{REVIEW}/name", {"spec": SPEC}, 403),
        ):  # fmt: skip
            answer = await admin.ask(method, path, body, **{MARK: "1", "content-type": "application/merge-patch+json"})
            if "selfsubject" in path and status == 201:
                answer = await admin.ask(method, path, body, **{MARK: "1"})
            assert answer[0] == status, (method, path, answer)
            assert status != 403 or "--console=read-only" in answer[1]["message"]
        assert (await admin.patch(f"{CLUSTERS}/edge1", patch))[0] == 200  # as kubectl does
        console = await hub.start_hubctl("console", "--no-open")
        assert (await console.line()).startswith("http://127.0.0.1:")
        assert ", read-only" in await console.end()


async def test_a_hub_serves_no_console_unless_its_settings_say_so(tmp_path: Path) -> None:
    async with hub_with(tmp_path) as hub:
        admin = await admin_of(hub)
        for path in ("/console", "/console/", "/console/config.json", "/console/index.html"):
            assert ((await nobody(hub).get(path))[0], (await admin.get(path))[0]) == (403, 404), path
        await hub.runs(("hubctl console --no-open", FAILED, "start it with --console=on"))


async def test_any_client_reads_backups_ends_of_certificates_and_transitions_of_the_fleet_and_denies_with_a_reason(
    hub: HubUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = await admin_of(hub)
    summary = "/apis/hub.open-cluster-management.io/v1alpha1/clustersummaries/fleet"
    status = (await admin.get(summary))[1]["status"]
    assert ("lastBackupTime" not in status, list(status["certificateAuthorities"].values())) == (True, ["Issuing"])
    await hub.store.run(lambda tx: tx.facts.set(BACKUP_MADE, "2026-11-28T08:00:00.000000Z"))
    assert (await admin.get(summary))[1]["status"]["lastBackupTime"] == "2026-11-28T08:00:00.000000Z"

    for name in ("edge1", "edge2"):
        await hub.join(name)
        condition = {"type": "ManagedClusterConditionAvailable", "status": "True", "reason": "Test", "message": ""}
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        status, answer = await admin.patch(f"{CLUSTERS}/{name}/status", {"status": {"conditions": [condition]}})
        assert status == 200, answer
    await hub.agent("edge1")
    accept = {"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
    table = (await admin.ask("GET", f"{CLUSTERS}?includeObject=None", **accept))[1]
    place = [each["name"] for each in table["columnDefinitions"]].index("Certificate")
    ends = [row["cells"][place] for row in table["rows"]]
    assert (ends[0][-1], ends[1]) == ("d", "<none>")

    transitions = "/apis/hub.open-cluster-management.io/v1alpha1/clustertransitions"
    found = (await admin.get(transitions))[1]["items"]
    assert [each["metadata"]["namespace"] for each in found] == ["edge2", "edge1"]
    monkeypatch.setattr("hub.registry.clustertransitions.CHUNK", 1)  # the page size of clients does not shorten the only page
    assert len((await admin.get(f"{transitions}?limit=1"))[1]["items"]) == 2
    for selector, count in (
        (f"since={found[0]['time']}", 1),
        (f"until={found[1]['time']}", 1),
        ("since=2027-01-01T00:00:00Z", 0),
    ):
        assert len((await admin.get(f"{transitions}?fieldSelector={selector}"))[1]["items"]) == count, selector
    assert (await admin.get(f"{transitions}?fieldSelector=since=yesterday"))[0] == 400

    await hub.runs(
        ("hubctl deny edge1 --reason 'not in the inventory'", 0, "denied"),
        ("hubctl deny edge1", 0, "denied already"),
        ("hubctl diagnose cluster edge1", NOT_WELL, "denied it (not in the inventory)"),
    )


@dataclass
class Browser:
    """A client of a `hubctl console`. `secret`: what it has read from the URL's fragment."""

    session: aiohttp.ClientSession
    origin: str
    secret: str

    def open(self, path: str, method: str = "GET", body: Any = None, **headers: str) -> Any:
        return self.session.request(method, self.origin + path, json=body, headers={SECRET: self.secret, **headers})


@asynccontextmanager
async def browser_at(console: Running) -> AsyncIterator[Browser]:
    origin, _, secret = (await console.line()).partition("/console/#secret=")
    assert len(secret) >= 32
    async with aiohttp.ClientSession() as session:
        yield Browser(session, origin, secret)


async def test_hubctl_console_forwards_a_browser_as_the_user_of_the_kubeconfig(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    await (await admin_of(hub)).bind("view", "User", "ann")
    console = await hub.start_hubctl("console", "--no-open", "--as", "ann")
    async with browser_at(console) as browser:
        async with browser.open("/", Accept="text/html") as answer:
            assert (answer.url.path, answer.status) == ("/console/", 200)
            assert "require-trusted-types-for" in answer.headers["Content-Security-Policy"]
        async with browser.open("/console/", **{"If-None-Match": answer.headers["ETag"]}) as answer:
            assert answer.status == 304
        async with browser.open("/apis/authentication.k8s.io/v1/selfsubjectreviews", "POST", {}) as answer:
            assert (await answer.json())["status"]["userInfo"]["username"] == "ann"
        stolen = {"Authorization": "Bearer x", "Impersonate-User": "system:admin", "Cookie": "a=b", "X-Remote-User": "root"}
        async with browser.open(CLUSTERS, **stolen) as answer:
            assert [each["metadata"]["name"] for each in (await answer.json())["items"]] == ["edge1"]
            assert not {"Server", "Set-Cookie"} & set(answer.headers)
        async with browser.open(f"{CLUSTERS}/edge1", "DELETE") as answer:
            status = await answer.json()
            assert (answer.status, status["reason"], '"ann"' in status["message"]) == (403, "Forbidden", True)
        for path, headers, code in (
            (CLUSTERS, {SECRET: "wrong"}, 401),
            ("/?x=1", {SECRET: "wrong", "Accept": "application/json"}, 200),  # redirected, not forwarded
            (CLUSTERS, {"Host": "evil.example"}, 403),
            (CLUSTERS, {"Origin": "https://evil.example"}, 403),
        ):
            async with browser.open(path, **headers) as answer:
                assert (answer.status, "edge1" in await answer.text()) == (code, False), path
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        await hub.stop()
        async with browser.open(CLUSTERS) as answer:
            assert (answer.status, (await answer.json())["reason"]) == (503, "ServiceUnavailable")
    assert browser.secret not in await console.end()


async def test_hubctl_console_passes_on_watches_at_once_and_either_side_ends_them(hub: HubUnderTest) -> None:
    await hub.join("edge1")
    console, watches = await hub.start_hubctl("console", "--no-open"), hub.operators.door.server.watches
    async with browser_at(console) as browser, asyncio.timeout(20):
        async with browser.open(BOOKMARKS) as stream:
            assert await _event(stream) == ("ADDED", "edge1")
            await hub.join("edge2")
            assert (await _event(stream), len(watches)) == (("ADDED", "edge2"), 1)
        await until(lambda: not len(watches), what="the watch of a browser that has left ends")
        async with browser.open(f"{CLUSTERS}?watch=1&timeoutSeconds=1") as stream:
            lines = (await stream.read()).splitlines()  # a stream that the hub ends is complete
            assert {json.loads(line)["object"]["metadata"]["name"] for line in lines} == {"edge1", "edge2"}
        async with browser.open(BOOKMARKS) as stream:
            await _event(stream)
            await hub.stop()
            await stream.read()
    await console.end()


async def _event(stream: aiohttp.ClientResponse) -> tuple[str, str]:
    event = json.loads(await stream.content.readline())
    return event["type"], event["object"]["metadata"]["name"]
