"""The demo's own rules, and the objects and faults of hollow clusters."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hollow import objects
from hollow.demo.place import OccupiedError, Place
from hollow.faults import Faults
from hollow.objects import Shape
from machinery.errors import InvalidError
from tests.checks import check_refusals


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


def test_faults_round_trip_and_unknown_words_are_refused() -> None:
    assert Faults.named("slow=1500ms", "not-live") == Faults(slow=timedelta(seconds=1.5), not_live=True)
    assert Faults.named() == Faults()
    faults = Faults(slow=timedelta(seconds=2), error=True, hang=True, not_live=True, no_livez=True, stall_after_write=3)
    assert Faults.from_document(faults.document()) == faults
    assert Faults().document() == {}
    check_refusals(
        InvalidError,
        Faults.named,
        (
            ("broken", 'no fault is called "broken": use error, hang'),
            ("slow", "slow=2s"),
            ("slow=-1s", "slow=2s"),
            ("stall-after-write=0", "from 1 on"),
            ("stall-before-write", "from 1 on"),
        ),
    )
