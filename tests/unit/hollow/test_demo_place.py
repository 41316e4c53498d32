"""The demo's own rules: what counts as Available, and what it suggests."""

from pathlib import Path
from typing import Any

import pytest

from hollow.demo.place import CLUSTERS, Hub, OccupiedError, Place, hollow_command, hub_command, next_commands, spoke_command
from hollow.demo.show import AVAILABLE, STANDBY, lacking, not_in_reserve

ALONE = Hub("hub", Path("/demo/hub"), 1, 2)
TWO = (Hub("hub-0", Path("/demo/hub-0"), 1, 2), Hub("hub-1", Path("/demo/hub-1"), 3, 4))
PIDS = {"hub": 4700, "hub-0": 4701, "hub-1": 4702, "cluster-0": 4711, "cluster-1": 4712}


def cluster(*, accepted: bool = True, available: str | None = "True") -> dict[str, Any]:
    found = [] if available is None else [{"type": AVAILABLE, "status": available, "message": "as it is"}]
    return {"spec": {"hubAcceptsClient": accepted}, "status": {"conditions": found}}


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "has not registered"),
        (cluster(accepted=False), "is not accepted"),
        (cluster(available=None), "has not joined"),
        (cluster(available="Unknown"), "is not Available: as it is"),
        ({"spec": {}}, "is not accepted"),
    ],
)
def test_cluster_that_is_not_available_says_what_it_lacks(found: dict[str, Any] | None, reason: str) -> None:
    assert lacking("cluster-0", found) == f"cluster-0 {reason}"


def test_available_cluster_lacks_nothing() -> None:
    assert lacking("cluster-0", cluster()) is None


def test_hollow_clusters_bear_the_names_that_join() -> None:
    command = hollow_command(Place(Path("/demo")))
    assert f"--count={len(CLUSTERS)}" in command
    assert [f"cluster-{index}" for index in range(len(CLUSTERS))] == list(CLUSTERS)
    assert "--name=cluster" in command


def test_no_command_carries_a_secret_but_only_paths_to_files() -> None:
    place = Place(Path("/demo"))
    for command in (hub_command(ALONE), hollow_command(place), spoke_command(place, "cluster-0", TWO)):
        assert not [word for word in command if "BEGIN" in word or "token" in word]


def test_next_commands_name_the_agent_to_kill() -> None:
    text = next_commands(Place(Path("/demo")), [ALONE], PIDS)
    assert "kill -9 4711" in text
    assert "describe cluster cluster-0" in text
    assert "kill -9 4700" not in text


def test_next_commands_name_the_owner_to_kill_where_there_is_another_hub() -> None:
    text = next_commands(Place(Path("/demo")), TWO, PIDS)
    assert "kill -9 4701" in text
    assert "kill -9 4702" not in text
    again = next(line for line in text.splitlines() if " serve " in line)
    assert "--data-dir=/demo/hub-0" in again
    assert "--grpc-listen=127.0.0.1:1" in again


def test_an_agent_has_a_bootstrap_kubeconfig_for_each_hub_in_order() -> None:
    command = spoke_command(Place(Path("/demo")), "cluster-0", TWO)
    given = [word for word in command if word.startswith("--bootstrap-kubeconfig=")]
    assert [word.rpartition("/")[2] for word in given] == ["hub-0.kubeconfig", "hub-1.kubeconfig"]


def in_reserve(reason: str) -> dict[str, Any]:
    return {"spec": {"hubAcceptsClient": True}, "status": {"conditions": [{"type": AVAILABLE, "reason": reason}]}}


@pytest.mark.parametrize("found", [None, {"spec": {}}, in_reserve("ManagedClusterAvailable")])
def test_cluster_that_does_not_stand_by_is_told(found: dict[str, Any] | None) -> None:
    assert "at hub-1" in (not_in_reserve(TWO[1], "cluster-0", found) or "")


def test_cluster_that_stands_by_lacks_nothing() -> None:
    assert not_in_reserve(TWO[1], "cluster-0", in_reserve(STANDBY)) is None


def test_place_is_emptied_and_kept_from_a_second_demo(tmp_path: Path) -> None:
    place = Place(tmp_path / "demo")
    with place.claimed():
        (place.logs / "old.log").write_text("old")
        with pytest.raises(OccupiedError, match="another demo is running"), place.claimed():
            pass
    with place.claimed():
        assert list(place.logs.iterdir()) == []
