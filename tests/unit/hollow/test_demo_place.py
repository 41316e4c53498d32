"""The demo's folder, and the faults of hollow clusters."""

from datetime import timedelta
from pathlib import Path

import pytest

from hollow.demo.place import DemoFolder, OccupiedError
from hollow.faults import Faults
from machinery.errors import InvalidError
from tests.checks import check_refusals


def test_place_is_emptied_and_kept_from_a_second_demo(tmp_path: Path) -> None:
    place = DemoFolder(tmp_path / "demo")
    with place.claimed():
        (place.logs / "old.log").write_text("old")
        with pytest.raises(OccupiedError, match="another demo is running"), place.claimed():
            pass
    with place.claimed():
        assert list(place.logs.iterdir()) == []


def test_faults_round_trip_and_unknown_words_are_refused() -> None:
    assert Faults.named("slow=1500ms", "not-live") == Faults(slow=timedelta(seconds=1.5), not_live=True)
    assert Faults.named() == Faults()
    faults = Faults(slow=timedelta(seconds=2), error=True, hang=True, not_live=True, no_livez=True, stall_after_write=3)
    assert (Faults.from_document(faults.document()), Faults().document()) == (faults, {})
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
