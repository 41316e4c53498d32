"""The demo's own rules, and the objects and faults of hollow clusters."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hollow import objects
from hollow.demo.place import CLUSTERS, Hub, OccupiedError, Place, hollow_command, hub_command, next_commands, spoke_command
from hollow.demo.show import AVAILABLE, STANDBY, lacking, not_in_reserve
from hollow.faults import Faults
from hollow.objects import Shape
from machinery.errors import InvalidError

ALONE = Hub("hub", Path("/demo/hub"), 1, 2)
TWO = (Hub("hub-0", Path("/demo/hub-0"), 1, 2), Hub("hub-1", Path("/demo/hub-1"), 3, 4))
PIDS = {"hub": 4700, "hub-0": 4701, "hub-1": 4702, "cluster-0": 4711, "cluster-1": 4712}


def cluster(*, accepted: bool = True, available: str | None = "True") -> dict[str, Any]:
    found = [] if available is None else [{"type": AVAILABLE, "status": available, "message": "as it is"}]
    return {"spec": {"hubAcceptsClient": accepted}, "status": {"conditions": found}}


def test_cluster_that_is_not_available_or_in_reserve_says_what_it_lacks(subtests: pytest.Subtests) -> None:
    rows: list[tuple[dict[str, Any] | None, str]] = [
        (None, "has not registered"),
        (cluster(accepted=False), "is not accepted"),
        (cluster(available=None), "has not joined"),
        (cluster(available="Unknown"), "is not Available: as it is"),
        ({"spec": {}}, "is not accepted"),
    ]
    assert [(found, reason) for found, reason in rows if lacking("cluster-0", found) != f"cluster-0 {reason}"] == []

    assert lacking("cluster-0", cluster()) is None

    rows_2: list[dict[str, Any] | None] = [None, {"spec": {}}, in_reserve("ManagedClusterAvailable")]
    for found in rows_2:
        with subtests.test(found=found):
            assert "at hub-1" in (not_in_reserve(TWO[1], "cluster-0", found) or "")

    assert not_in_reserve(TWO[1], "cluster-0", in_reserve(STANDBY)) is None


def test_commands_name_clusters_and_processes_and_no_secret() -> None:
    command = hollow_command(Place(Path("/demo")))
    assert f"--count={len(CLUSTERS)}" in command
    assert [f"cluster-{index}" for index in range(len(CLUSTERS))] == list(CLUSTERS)
    assert "--name=cluster" in command
    place = Place(Path("/demo"))
    for command in (hub_command(ALONE), hollow_command(place), spoke_command(place, "cluster-0", TWO)):
        assert not [word for word in command if "BEGIN" in word or "token" in word]
    command = spoke_command(Place(Path("/demo")), "cluster-0", TWO)
    given = [word for word in command if word.startswith("--bootstrap-kubeconfig=")]
    assert [word.rpartition("/")[2] for word in given] == ["hub-0.kubeconfig", "hub-1.kubeconfig"]

    text = next_commands(Place(Path("/demo")), [ALONE], PIDS)
    assert "kill -9 4711" in text
    assert "describe cluster cluster-0" in text
    assert "kill -9 4700" not in text
    text = next_commands(Place(Path("/demo")), TWO, PIDS)
    assert "kill -9 4701" in text
    assert "kill -9 4702" not in text
    again = next(line for line in text.splitlines() if " serve " in line)
    assert "--data-dir=/demo/hub-0" in again
    assert "--grpc-listen=127.0.0.1:1" in again


def in_reserve(reason: str) -> dict[str, Any]:
    return {"spec": {"hubAcceptsClient": True}, "status": {"conditions": [{"type": AVAILABLE, "reason": reason}]}}


def test_place_is_emptied_and_kept_from_a_second_demo(tmp_path: Path) -> None:
    place = Place(tmp_path / "demo")
    with place.claimed():
        (place.logs / "old.log").write_text("old")
        with pytest.raises(OccupiedError, match="another demo is running"), place.claimed():
            pass
    with place.claimed():
        assert list(place.logs.iterdir()) == []


NOW = datetime(2026, 11, 21, tzinfo=UTC)


def test_hollow_cluster_has_the_shape_asked_for(subtests: pytest.Subtests) -> None:
    first, again, other = Shape("a"), Shape("a", nodes=9), Shape("b")
    assert first.cluster_uid == again.cluster_uid
    assert first.cluster_uid != other.cluster_uid
    assert first.uid("namespaces", "kube-system") != first.uid("namespaces", "default")

    for count in (0, 1, 4, 7):
        with subtests.test(count=count):
            shape = Shape("a", nodes=count, claims=count)
            assert len({node["metadata"]["name"] for node in objects.nodes(shape, NOW)}) == count
            assert len({claim["metadata"]["name"] for claim in objects.claims(shape)}) == count

    claims = {claim["metadata"]["name"]: claim["spec"]["value"] for claim in objects.claims(Shape("a"))}
    assert claims["id.k8s.io"] == Shape("a").cluster_uid

    shape = Shape("a", nodes=1, version="v1.31.0")
    document = objects.version(shape)
    assert (document["major"], document["minor"], document["gitVersion"]) == ("1", "31", "v1.31.0")
    assert next(objects.nodes(shape, NOW))["status"]["nodeInfo"]["kubeletVersion"] == "v1.31.0"


def test_faults_round_trip_and_unknown_words_are_refused(subtests: pytest.Subtests) -> None:
    assert Faults.named("slow=1500ms", "not-live") == Faults(slow=timedelta(seconds=1.5), not_live=True)
    assert Faults.named() == Faults()
    faults = Faults(slow=timedelta(seconds=2), error=True, hang=True, not_live=True, no_livez=True, stall_after_write=3)
    assert Faults.from_document(faults.document()) == faults
    assert Faults().document() == {}
    for word, said in (
        ("broken", 'no fault is called "broken": use error, hang'),
        ("slow", "slow=2s"),
        ("slow=-1s", "slow=2s"),
        ("stall-after-write=0", "from 1 on"),
        ("stall-before-write", "from 1 on"),
    ):
        with subtests.test(word=word, said=said), pytest.raises(InvalidError, match=said):
            Faults.named(word)
