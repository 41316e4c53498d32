"""The demo's own rules: what counts as Available, and what it suggests."""

from pathlib import Path
from typing import Any

import pytest

from hollow.demo.place import CLUSTERS, OccupiedError, Place, hollow_command, hub_command, next_commands, spoke_command
from hollow.demo.show import AVAILABLE, lacking


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
    for command in (hub_command(place, 1, 2), hollow_command(place), spoke_command(place, "cluster-0")):
        assert not [word for word in command if "BEGIN" in word or "token" in word]


def test_next_commands_name_the_agent_to_kill() -> None:
    text = next_commands(Place(Path("/demo")), [("cluster-0", 4711), ("cluster-1", 4712)])
    assert "kill -9 4711" in text
    assert "describe cluster cluster-0" in text


def test_place_is_emptied_and_kept_from_a_second_demo(tmp_path: Path) -> None:
    place = Place(tmp_path / "demo")
    with place.claimed():
        (place.logs / "old.log").write_text("old")
        with pytest.raises(OccupiedError, match="another demo is running"), place.claimed():
            pass
    with place.claimed():
        assert list(place.logs.iterdir()) == []
