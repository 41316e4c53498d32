"""The console in a browser: live, honest about what it does not know, harmless whatever agents report, and accessible."""

import asyncio
import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from docs.record_console import record_site
from hub.api.liveness import Beat
from machinery.identity import ClusterName
from tests import programs
from tests.browser.conftest import NO_SHARED_WORKER, WATCHED, Desk, Visit, opened_browser, static_site
from tests.integration.https_door.conftest import CLUSTERS, REQUESTS, admin_of, hub_with
from tests.integration.https_door.test_console_sign_in import SESSIONS, staged

expect: Any = pytest.importorskip("playwright.async_api").expect
expect.set_options(timeout=20_000)  # a machine that runs the whole suite is slow
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(120)]

HOSTILE = '"\'><img src=x onerror="window.hit=1"><script>window.hit=1</script>{{constructor}}${window.hit=1}'
FAILED = {"type": "ManagedClusterConditionAvailable", "status": "False", "reason": "Failed", "message": ""}
FAILED |= {"lastTransitionTime": "2026-01-01T00:00:00Z"}
ADDONS = "/apis/addon.open-cluster-management.io/v1beta1/namespaces/edge1/managedclusteraddons"
COMPARED = "time?to=2026-01-01T00:00Z&at=2026-01-02T00:00Z"
VIEWS = "fleet", "fleet?group=version", "inbox", "cluster/edge1", "cluster/edge1?tab=History", COMPARED
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 780}


def row(visit: Visit, name: str) -> Any:
    return visit.page.locator(f'[data-testid=row][data-name="{name}"]')


async def test_console_shows_joins_live_accepts_from_the_inbox_and_says_when_the_hub_is_away(desk: Desk) -> None:
    hub = desk.hub
    async with desk.visit() as visit:
        assert visit.secret not in visit.page.url  # it is out of the address before anything else
        await hub.join("edge1", env="prod")
        await expect(row(visit, "edge1")).to_contain_text("Waiting")
        await hub.join("edge2")
        await expect(row(visit, "edge2")).to_be_visible()

        await hub.request("edge1", "edge1-first")
        await visit.at("nav-inbox").click()
        entry = visit.at("entry").filter(has_text="edge1")
        await entry.filter(has_text="a credential for this cluster alone").get_by_test_id("accept").click()
        await expect(visit.at("accept-item")).to_contain_text("edge1-first")
        await visit.at("bulk-run").click()
        await expect(entry).to_have_count(0)
        admin = await admin_of(hub)
        assert (await admin.get(f"{CLUSTERS}/edge1"))[1]["spec"]["hubAcceptsClient"] is True
        document = (await admin.get(f"{REQUESTS}/edge1-first"))[1]
        assert "Approved" in [each["type"] for each in document["status"]["conditions"]]

        await visit.at("nav-fleet").click()
        await hub.stop()
        await expect(visit.at("stale")).to_contain_text("Not live since")
        await expect(row(visit, "edge1")).to_be_visible()
        await hub.start()
        await expect(visit.at("stale")).to_have_count(0, timeout=30_000)
        await hub.join("edge3")
        await expect(row(visit, "edge3")).to_be_visible()


async def test_a_killed_agent_has_no_session_and_in_its_grace_is_unknown(tmp_path: Path, browser: Any) -> None:
    lease = {"default_lease_duration": timedelta(seconds=1), "beat_interval": timedelta(milliseconds=250)}
    async with hub_with(tmp_path, console="on", leads=True, auto_approve=("edge-*",), **lease) as hub:
        file = str(tmp_path / "edge.bootstrap")
        await hub.output("hubctl create bootstrap-kubeconfig --allow-loopback --cluster-pattern edge-* -o", file)
        agents = ("--agents", "1", "--name-prefix", "edge", "--state-dir", str(tmp_path / "load"), "--duration", "5m")
        load = await programs.start(
            "hollow", "load", "steady", "--bootstrap-kubeconfig", file, *agents, stdout=programs.DEVNULL
        )
        desk = Desk(hub, browser)
        async with desk.visit() as visit:
            session = row(visit, "edge-0").locator("[data-column=session]")
            await expect(row(visit, "edge-0")).to_contain_text("Available")
            await expect(session).to_have_text("here")
            load.kill()
            await load.wait()
            await expect(session).to_have_text("no session")
            await expect(row(visit, "edge-0")).to_contain_text("Unknown")
        await desk.close()


async def test_a_viewer_sees_grey_buttons_with_the_reason_and_a_forced_request_is_refused(desk: Desk) -> None:
    admin = await admin_of(desk.hub)
    await desk.hub.join("edge1")
    await desk.hub.request("edge1", "edge1-first")
    await admin.bind("view", "ServiceAccount", "ann", namespace="default")
    async with desk.visit(desk.hub.token_kubeconfig("ann", await admin.token("ann"))) as visit:
        await visit.go("inbox")
        button = visit.at("entry").filter(has_text="edge1").get_by_test_id("accept")
        await expect(button).to_have_attribute("aria-disabled", "true")
        await expect(button).to_have_attribute("title", re.compile("You may not"))
        await button.click(force=True)
        await expect(visit.at("accept-dialog")).to_have_count(0)
        await visit.go("cluster/edge1")
        await expect(visit.at("do-delete")).to_have_attribute("title", re.compile("You may not delete managedclusters"))
        assert await visit.fetch("PATCH", f"{CLUSTERS}/edge1", {"spec": {"hubAcceptsClient": True}}) == 403
        assert await visit.fetch("DELETE", f"{CLUSTERS}/edge1") == 403
        visit.secret = f"{visit.secret[:-1]}-"
        assert await visit.fetch("GET", f"{CLUSTERS}/edge1") == 401


async def test_a_read_only_console_without_shared_workers_stays_live_and_the_hub_refuses_its_writes(
    tmp_path: Path, browser: Any
) -> None:
    async with hub_with(tmp_path, console="read-only", leads=True) as hub:
        desk = Desk(hub, browser)
        async with desk.visit(script=NO_SHARED_WORKER) as visit:
            await hub.join("edge1")
            await expect(row(visit, "edge1")).to_contain_text("Waiting")
            await hub.restart()
            await hub.join("edge2")
            await expect(row(visit, "edge2")).to_be_visible(timeout=30_000)
            await expect(visit.at("stale")).to_have_count(0)
            await visit.go("inbox")
            button = visit.at("entry").filter(has_text="edge1").get_by_test_id("accept")
            await expect(button).to_have_attribute("title", re.compile("read-only"))
            await button.click(force=True)
            await expect(visit.at("accept-dialog")).to_have_count(0)
            for method, status in (("GET", 200), ("PATCH", 403), ("DELETE", 403)):
                assert await visit.fetch(method, f"{CLUSTERS}/edge1", {} if method == "PATCH" else None) == status, method
        await desk.close()


async def test_every_visible_row_has_its_beat_and_certificate_by_one_request_and_a_denial_has_its_reason(desk: Desk) -> None:
    hub, names = desk.hub, [f"edge-{number:02}" for number in range(20)]
    admin = await admin_of(hub)
    for name in names:
        await hub.join(name)
    await hub.store.run(lambda tx: tx.heartbeats.store([Beat(ClusterName(name), timedelta(), None) for name in names]))
    await admin.patch(f"{CLUSTERS}/edge-00/status", {"status": {"conditions": [FAILED]}})
    await hub.agent("edge-00")
    asked: list[int] = []
    async with desk.visit(viewport={"width": 1600, "height": 1200}) as visit:
        visit.page.on("request", lambda request: asked.append(request.url.count("edge-")))
        await visit.page.clock.install()
        await visit.page.reload()
        await expect(visit.page.locator(".vbody [data-column=beat]:not(.muted)")).to_have_count(len(names))
        await expect(row(visit, "edge-00").locator("[data-column=certificate]")).to_have_text(re.compile("^[0-9]+d$"))
        await expect(visit.at("backup")).to_have_text("none")
        assert set(asked) - {0} == {len(names)}
        await visit.page.clock.run_for(40_000)  # until the strip has been read after the last change
        await visit.loaded()
        asked.clear()
        began = await visit.page.evaluate("Date.now()")
        for _ in range(6):
            await visit.page.clock.run_for(10_000)
            await visit.loaded()
        passed = await visit.page.evaluate("Date.now()") - began
        assert (set(asked), 5 <= len(asked) <= passed / 10_000 + 1) == ({len(names)}, True), asked

        await visit.go("inbox")
        await visit.at("entry").filter(has_text="edge-01").get_by_test_id("deny").click()
        await visit.at("deny-reason").fill("not in the inventory")
        await visit.at("bulk-run").click()
        await visit.go("fleet")
        state = row(visit, "edge-01").locator("[data-column=state]")
        await state.hover()
        await expect(state).to_have_attribute("title", re.compile("not in the inventory"))
        await visit.go("time")
        await expect(visit.at("changes")).to_contain_text("edge-00")


async def test_recorded_exchanges_show_the_console_on_a_static_site_without_a_hub(desk: Desk, tmp_path: Path) -> None:
    await desk.hub.join("edge1")
    await desk.hub.request("edge1", "edge1-first")
    await record_site(desk, tmp_path / "site", ["edge1"], lambda: desk.hub.join("edge2"))
    await desk.hub.stop()
    context = await desk.browser.new_context()
    with static_site(tmp_path / "site") as url:
        visit = Visit(await context.new_page(), url, "")
        visit.watch_faults()
        await visit.page.goto(url)
        await expect(row(visit, "edge1")).to_contain_text("Waiting")
        await expect(row(visit, "edge2")).to_be_visible()
        await visit.go("inbox")
        button = visit.at("entry").filter(has_text="edge1").get_by_test_id("accept")
        await expect(button).to_have_attribute("title", re.compile("read-only"))
        await visit.go("cluster/edge1")
        await expect(visit.at("cause")).to_contain_text("not accepted yet")
        await context.close()
    assert visit.faults == []


async def test_inbox_refuses_several_requests_shared_credentials_and_requests_that_were_not_seen(desk: Desk) -> None:
    hub = desk.hub
    for name in ("edge1", "edge2", "edge3", "edge4"):
        await hub.join(name)
    await hub.request("edge1", "edge1-first")
    await hub.request("edge1", "edge1-second", "edge*")
    await hub.request("edge2", "edge2-shared", "edge*")
    await hub.request("edge4", "edge4-first")
    async with desk.visit() as visit:
        await visit.go("inbox")
        await expect(visit.at("entry").filter(has_text="a credential for this cluster alone")).to_have_count(1)
        await visit.at("select-all").click()
        await visit.at("accept-chosen").click()
        await expect(visit.at("accept-refused")).to_have_text(
            [
                r"edge1: 2 requests wait. Compare them, and approve one of them.",
                "edge2: The requester has no bootstrap credential for only this cluster. Check the requester.",
            ]
        )
        await hub.request("edge3", "edge3-late")  # after the preview
        await visit.at("bulk-run").click()
        await expect(visit.at("accept-dialog")).to_contain_text("edge3 is accepted, but no certificate request is approved")
        admin = await admin_of(hub)
        clusters, requests = [(await admin.get(path))[1]["items"] for path in (CLUSTERS, REQUESTS)]
        accepted = [each["metadata"]["name"] for each in clusters if each["spec"]["hubAcceptsClient"]]
        decided = [each["metadata"]["name"] for each in requests if each.get("status", {}).get("conditions")]
        assert (accepted, decided) == (["edge3", "edge4"], ["edge4-first"])


async def test_no_script_runs_whatever_a_cluster_reports_or_a_link_says(desk: Desk) -> None:
    hub, admin = desk.hub, await admin_of(desk.hub)
    await hub.join("edge1")
    await hub.request("edge1", "edge1-first")
    condition = {**FAILED, "message": HOSTILE}
    claims = [{"name": name, "value": HOSTILE} for name in ("platform.open-cluster-management.io", "javascript.example")]
    url = "https://edge1.example/" + "%22%3E%3Cimg%20src=x%20onerror=window.hit=1%3E"
    for path, patch in (
        ("", {"metadata": {"annotations": {"hub.open-cluster-management.io/agent-version": HOSTILE, "note": HOSTILE}}}),
        ("", {"spec": {"managedClusterClientConfigs": [{"url": url}], "hubAcceptsClient": True}}),
        ("/status", {"status": {"version": {"kubernetes": HOSTILE}, "clusterClaims": claims, "conditions": [condition]}}),
    ):
        status, answer = await admin.patch(f"{CLUSTERS}/edge1{path}", patch)
        assert status == 200, answer
    event = {"metadata": {"name": "e1", "namespace": "edge1"}, "reason": HOSTILE, "message": HOSTILE, "type": "Warning"}
    event |= {"involvedObject": {"kind": "ManagedCluster", "name": "edge1"}, "source": {"component": HOSTILE}}
    events = await admin.ask("POST", "/api/v1/namespaces/edge1/events", event)
    assert events[0] == 201, events
    addon: dict[str, Any] = {"apiVersion": "addon.open-cluster-management.io/v1beta1", "kind": "ManagedClusterAddOn"}
    addon |= {"metadata": {"name": "x", "annotations": {"a": HOSTILE}}, "spec": {}}
    status, answer = await admin.ask("POST", ADDONS, addon)
    assert status == 201, answer["message"]
    status, answer = await admin.patch(f"{ADDONS}/x/status", {"status": {"conditions": [{**condition, "type": "Available"}]}})
    assert status == 200, answer["message"]
    tabs = [f"cluster/edge1?tab={tab}" for tab in ("Overview", "History", "Events", "Audit", "YAML")]
    poisoned = ["fleet?where={0}&sort={0}&group={0}&tile={0}", "fleet?secret=", "cluster/{0}", "cluster/edge1?at={0}&tab={0}"]
    poisoned += ["inbox?select={0}&do={0}", "time?at={0}&to={0}&range={0}&cluster={0}", "{0}", "javascript:window.hit=1"]
    async with desk.visit() as visit:
        await expect(row(visit, "edge1")).to_contain_text("Unavailable")
        quoted = await visit.page.evaluate("encodeURIComponent", HOSTILE)
        for view in ("inbox", *tabs, "time", *(each.replace("{0}", quoted) for each in poisoned)):
            await visit.go(view)
            await visit.loaded()
            assert await visit.page.evaluate("window.hit") is None, view
            assert await visit.page.locator('img[src="x"], main script, [href^="javascript:" i]').count() == 0, view
        await visit.go("fleet?where=version ~ 'x")
        await expect(visit.at("question-problem")).to_be_visible()


PURE, ANSWERS = (Path(__file__).with_name(f"pure.{kind}").read_text() for kind in ("js", "json"))


async def test_rows_keep_their_place_under_the_pointer_and_a_tab_without_the_secret_changes_nothing(desk: Desk) -> None:
    await desk.hub.join("edge2")
    async with desk.visit() as visit:
        await row(visit, "edge2").hover()
        await desk.hub.join("edge1")
        await expect(visit.at("apply")).to_have_text("1 change, apply")
        await expect(row(visit, "edge1")).to_have_count(0)
        await visit.at("count").hover()
        await expect(visit.at("row").first).to_contain_text("edge1")
        assert await visit.page.evaluate(PURE) == json.loads(ANSWERS)
        stranger = await visit.page.context.new_page()
        await stranger.goto(f"{visit.origin}/console/")
        await expect(stranger.get_by_test_id("sign-in")).to_be_visible()
        await desk.hub.join("edge3")
        await expect(row(visit, "edge3")).to_be_visible()


async def test_every_page_is_accessible_in_both_themes_and_on_a_telephone(desk: Desk, axe: str) -> None:
    for name in ("edge1", "edge2", "edge3"):
        await desk.hub.join(name, env="prod")
    await desk.hub.accept("edge3")
    await desk.hub.request("edge1", "edge1-first")
    wrong = []
    for theme, size in (("light", WIDE), ("dark", NARROW), ("dark", WIDE)):
        # axe-core is evaluated in the page, which the policy of the page forbids
        async with desk.visit(color_scheme=theme, viewport=size, bypass_csp=True, reduced_motion="reduce") as visit:
            await visit.page.evaluate(axe)
            for view in VIEWS:
                await visit.go(view)
                await visit.loaded()
                found = await visit.page.evaluate("(rules) => axe.run(document, { runOnly: rules })", RULES)
                wrong += [
                    f"{view} {theme} {size['width']}: {each['id']}: {node['target']} {node['failureSummary']}"
                    for each in found["violations"]
                    for node in each["nodes"][:3]
                ]
                width = await visit.page.evaluate("document.documentElement.scrollWidth - innerWidth")
                wrong += [f"{view} is {width} pixels wider than {size['width']}"] if width > 0 else []
    assert not wrong, "\n".join(wrong)


async def test_the_brake_is_released_after_its_name_is_typed(desk: Desk) -> None:
    fleet = {"status": {"brake": {"holds": True, "since": "2026-01-01T00:00:00Z", "silent": 3}}}
    async with desk.visit() as visit:
        await visit.page.route("**/clustersummaries/fleet*", lambda route: route.fulfill(json=fleet))
        await visit.page.reload()
        await visit.at("tile-brake").click()
        await visit.page.get_by_role("button", name="Release the brake…").click()
        await visit.loaded()  # until the first dialog's event "close" has come
        await visit.at("confirm-name").fill("fleet")
        async with visit.page.expect_request(lambda each: each.method == "PATCH" and "dryRun" not in each.url):
            await visit.at("confirm-run").click()
        await expect(visit.at("confirm")).to_have_count(0)


async def test_a_cancelled_decision_stops_after_the_request_that_was_sent(desk: Desk) -> None:
    go_on = asyncio.Event()

    async def hold(route: Any) -> None:
        if route.request.method == "PATCH":
            await go_on.wait()
        await route.continue_()

    for name in ("edge1", "edge2", "edge3"):
        await desk.hub.join(name)
    async with desk.visit() as visit:
        await visit.page.route("**/managedclusters/*", hold)
        await visit.go("inbox")
        await expect(visit.at("entry")).to_have_count(3)
        await visit.at("select-all").click()
        await visit.at("deny-chosen").click()
        async with visit.page.expect_request(lambda each: each.method == "PATCH"):
            await visit.at("bulk-run").click()
        await visit.at("deny-dialog").get_by_text("Cancel").click()
        go_on.set()
        await expect(visit.page.locator(".notice")).to_contain_text("1 of 3 done")


async def test_changes_are_applied_although_the_frame_never_comes_as_in_a_hidden_tab(desk: Desk) -> None:
    async with desk.visit() as visit:
        await desk.hub.join("edge1")
        await expect(row(visit, "edge1")).to_be_visible()
        await visit.page.evaluate("globalThis.requestAnimationFrame = () => 0")
        await desk.hub.join("edge2")
        await expect(visit.at("count")).to_have_text("2 clusters")


async def test_a_person_signs_in_at_the_issuer_returns_to_the_view_and_signs_out(tmp_path: Path) -> None:
    async with (
        opened_browser("--ignore-certificate-errors") as browser,
        staged(tmp_path, {}, url="https://localhost:{port}") as stage,
    ):
        hub, origin = stage.hubs[0], f"https://localhost:{stage.ports[0]}"
        await stage.admin.bind("view", "User", "ann")
        await hub.join("edge1")
        visit = Visit(await (await browser.new_context()).new_page(), origin, "")
        visit.watch_faults()
        await visit.page.add_init_script(WATCHED)
        await visit.page.goto(f"{origin}/console/#/cluster/edge1")
        await visit.at("sign-in-button").click()  # to the issuer, which is another site, and back
        await expect(visit.at("user")).to_have_text("ann")
        await expect(visit.page).to_have_url(f"{origin}/console/#/cluster/edge1")
        await visit.go("fleet")
        await expect(row(visit, "edge1")).to_be_visible()
        await hub.join("edge2")  # the watch of the worker has the session too
        await expect(row(visit, "edge2")).to_be_visible()
        second = Visit(await visit.page.context.new_page(), origin, "")
        await second.page.goto(f"{origin}/console/")
        await expect(row(second, "edge1")).to_be_visible()  # this tab keeps the worker
        (session,) = (await stage.admin.get(SESSIONS))[1]["items"]
        await stage.admin.ask("DELETE", f"{SESSIONS}/{session['metadata']['name']}")
        for kind in ("clusters", "sessions", "requests"):
            await expect(visit.at(f"forbidden-{kind}")).to_be_visible()
        await visit.page.get_by_role("button", name="Sign in again").click()
        await hub.join("edge3")
        await expect(row(visit, "edge3")).to_be_visible()  # the worker alone tries again after a minute
        assert (await visit.page.evaluate("document.cookie"), await visit.fetch("DELETE", f"{CLUSTERS}/edge1")) == ("", 403)
        await visit.at("sign-out").click()
        await expect(visit.at("sign-in-button")).to_be_visible()
        assert (await visit.fetch("GET", f"{CLUSTERS}/edge1"), visit.faults) == (401, [])
