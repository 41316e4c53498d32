"""The past at the HTTPS door, and what hubctl makes of it."""

import json
from datetime import timedelta
from typing import Any

from hub.api.meta.change import MANAGED_CLUSTERS
from hub.registry.managedclusters import service as clusters
from hubctl.errors import DONE, MISUSED, NOT_FOUND
from machinery.identity import ClusterName
from machinery.product import GROUP_SUFFIX
from tests.integration.https_door.conftest import CLUSTERS, HubUnderTest, admin_of, holder

EDGE = ClusterName("edge1")
DIFFERENT = 1


async def label(hub: HubUnderTest, name: str, **labels: str) -> int:
    """The revision of the write."""
    stored = await hub.store.read(clusters.find, ClusterName(name))
    metadata = {**stored.document["metadata"], "labels": labels}
    return (await hub.store.run(clusters.put, {**stored.document, "metadata": metadata}, stored, "mary")).stored.revision


async def remove(hub: HubUnderTest, name: str) -> None:
    stored = await hub.store.read(clusters.find, ClusterName(name))
    await hub.store.run(lambda tx: tx.objects.delete(MANAGED_CLUSTERS, stored, "mary"))


async def raw(hub: HubUnderTest, path: str) -> tuple[int, Any]:
    """Exit code and document, as kubectl --raw gets it."""
    status, answer = await (await admin_of(hub)).get(path)
    return (0, answer) if status == 200 else (1, json.dumps(answer))


async def forget(hub: HubUnderTest) -> None:
    """As if the watch window, and then the time of history, were over."""
    await hub.store.run(lambda tx: tx.changes.compact(tx.now + timedelta(seconds=1)))
    await hub.store.run(lambda tx: tx.changes.forget(None))


async def test_a_list_and_an_object_are_read_as_they_were(hub: HubUnderTest) -> None:
    for name in ("edge1", "edge2"):
        await hub.join(name, env="prod")
    then = await hub.store.read(lambda tx: tx.changes.newest())
    moment = await hub.store.read(lambda tx: tx.changes.instant(then))
    assert moment is not None
    await label(hub, "edge1", env="test")
    for asked in (str(then), moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")):
        code, listed = await raw(hub, f"{CLUSTERS}?at={asked}&labelSelector=env%3Dprod")
        assert (code, [item["metadata"]["name"] for item in listed["items"]]) == (0, ["edge1", "edge2"])
        assert listed["metadata"]["resourceVersion"] == str(then)
        code, one = await raw(hub, f"{CLUSTERS}/edge1?at={asked}")
        assert (code, one["metadata"]["labels"]["env"]) == (0, "prod")
    code, first = await raw(hub, f"{CLUSTERS}?at={then}&limit=1")
    code, second = await raw(hub, f"{CLUSTERS}?at={then}&limit=1&continue={first['metadata']['continue']}")
    assert [item["metadata"]["name"] for page in (first, second) for item in page["items"]] == ["edge1", "edge2"]
    assert (await raw(hub, f"{CLUSTERS}/edge1"))[1]["metadata"]["labels"]["env"] == "test"


async def test_past_is_read_below_the_watch_window_and_refused_where_it_cannot_be(hub: HubUnderTest) -> None:
    for path, word in (
        *((f"{CLUSTERS}?at=yesterday", "give a time such as"), (f"{CLUSTERS}?at=2999-01-01T00:00Z", "is in the future")),
        (f"{CLUSTERS}?at=1&resourceVersion=1", "exclude each other"),
        *((f"{CLUSTERS}?at=1&watch=1", "the past does not change"), (f"{CLUSTERS}?at=999999", "not of this database")),
        ("/api/v1/namespaces/default/secrets?at=1", "the past of secrets is not kept"),
        ("/api/v1/events?at=1", "the past of events is not kept"),
        (f"/apis/hub.{GROUP_SUFFIX}/v1alpha1/hubreplicas?at=1", "the past of hubreplicas is not kept"),
    ):
        code, refused = await raw(hub, path)
        assert (code, word in refused) == (1, True), (path, refused)

    await hub.join("edge2")
    status, answer = await (await admin_of(hub)).ask("DELETE", f"{CLUSTERS}/edge2?at=1")
    assert (status >= 400, "earlier states cannot be changed" in answer["message"]) == (True, True)
    assert await hub.store.read(clusters.find, ClusterName("edge2"))

    await hub.join("edge1", env="prod")
    then = await hub.store.read(lambda tx: tx.changes.newest())
    await label(hub, "edge1", env="test")
    await hub.store.run(lambda tx: tx.changes.compact(tx.now + timedelta(seconds=1)))
    assert (await raw(hub, f"{CLUSTERS}/edge1?at={then}"))[1]["metadata"]["labels"]["env"] == "prod"
    _, first = await raw(hub, f"{CLUSTERS}?at={then}&limit=1")
    assert first["items"][0]["metadata"]["labels"]["env"] == "prod"
    code, refused = await raw(hub, f"{CLUSTERS}?resourceVersion={then}&resourceVersionMatch=Exact")
    assert (code, "too old" in refused) == (1, True)
    await forget(hub)
    code, refused = await raw(hub, f"{CLUSTERS}/edge1?at={then}")
    assert (code, "history is kept from revision" in refused) == (1, True)


async def test_history_lists_each_change_of_an_object_to_readers_with_that_right(hub: HubUnderTest) -> None:
    await hub.join("edge1", env="prod")
    await label(hub, "edge1", env="test", tier="a")
    await remove(hub, "edge1")
    code, answer = await raw(hub, f"{CLUSTERS}/edge1/history")
    assert (code, answer["kind"], answer["apiVersion"]) == (0, "ObjectHistory", f"hub.{GROUP_SUFFIX}/v1alpha1")
    types = [change["type"] for change in answer["changes"]]
    assert (types[0], types[-1], set(types[1:-1])) == ("DELETED", "ADDED", {"MODIFIED"})
    labelled = answer["changes"][-2]
    assert labelled["actor"] == "mary"
    assert labelled["fields"] == [
        {"path": "metadata.labels.env", "before": "prod", "after": "test"},
        {"path": "metadata.labels.tier", "after": "a"},
    ]
    code, newest = await raw(hub, f"{CLUSTERS}/edge1/history?limit=1")
    code, older = await raw(hub, f"{CLUSTERS}/edge1/history?limit=500&before={newest['metadata']['continue']}")
    assert [*newest["changes"], *older["changes"]] == answer["changes"]
    assert "continue" not in older["metadata"]
    assert (await raw(hub, f"{CLUSTERS}/nobody/history"))[1]["changes"] == []
    after = answer["changes"][1]["revision"]
    assert (await raw(hub, f"{CLUSTERS}/edge1/history?after={after}"))[1]["changes"] == answer["changes"][:1]

    await hub.join("edge1")
    await hub.accept("edge1")
    agent = holder(hub, await hub.agent("edge1"))
    assert ((await agent.get(f"{CLUSTERS}/edge1"))[0], (await agent.get(f"{CLUSTERS}/edge1/history"))[0]) == (200, 403)


async def test_what_is_forgotten_is_no_change_but_what_the_rest_differs_from(hub: HubUnderTest) -> None:
    await hub.join("edge1", env="prod")
    await forget(hub)
    await label(hub, "edge1", env="test")
    history = json.loads(await hub.output("hubctl history edge1 -o json"))
    changed = {"path": "metadata.labels.env", "before": "prod", "after": "test"}
    assert [change["fields"] for change in history["changes"]] == [[changed]]
    assert history["began"]


async def test_hubctl_shows_what_was_what_became_of_it_and_what_is_different(hub: HubUnderTest) -> None:
    await hub.join("edge1", env="prod")
    await hub.join("edge2", env="prod")
    then = str(await hub.store.read(lambda tx: tx.changes.newest()))
    watching = await hub.start_hubctl("history", "edge1", "-w")
    assert [(await watching.line()).split()[-1] for _ in range(2)][1] == "added"
    await hub.output("hubctl accept edge1")
    await remove(hub, "edge2")
    shown = await hub.output(f"hubctl get clusters --at {then}")
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [["edge1", "false"], ["edge2", "false"]]
    assert "(no session)" in shown
    await hub.runs(
        (f"hubctl get cluster edge2 --at {then} -o name", DONE, "managedcluster.cluster"),
        ("hubctl history edge1", DONE, "added"),
        ("hubctl history edge1", DONE, "spec.hubAcceptsClient: false -> true"),
        ("hubctl history nobody", NOT_FOUND, 'there is no history of the cluster "nobody"'),
        (f"hubctl diff cluster edge1 --from {then}", DIFFERENT, "-  hubAcceptsClient: false"),
        (f"hubctl diff cluster edge1 --from {then}", DIFFERENT, "+  hubAcceptsClient: true"),
        ("hubctl diff clusters --from now", DONE, ""),
        (f"hubctl diff cluster nobody --from {then}", MISUSED, ""),
    )
    assert (await hub.output("hubctl history cluster edge2")).splitlines()[-1].split()[-1] == "deleted"
    fleet = await hub.hubctl(f"diff clusters --from {then}")
    assert (fleet.code, "spec.hubAcceptsClient: false -> true" in fleet.out) == (DIFFERENT, True)
    assert [line.split() for line in fleet.lines if "edge2" in line] == [["edge2", "deleted"]]

    assert "hubAcceptsClient" in await watching.line()
    for step in range(1, 4):
        await label(hub, "edge1", env="prod", step=str(step))
    assert [(await watching.line()).split()[-1] for _ in range(3)] == ["1", "2", "3"]
    await watching.end()
