"""Files of keys: whatever the disk says is told as such, so that what does not need them goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hub.issuer import files
from machinery.errors import UnavailableError


def written(path: Path) -> None:
    files.replace(path, b"a key")


@pytest.mark.parametrize(("change", "told"), [(written, "written"), (files.remove, "removed")])
def test_what_stands_in_the_way_is_told_with_its_name(tmp_path: Path, change: Callable[[Path], None], told: str) -> None:
    place = tmp_path / "ca.key"
    place.mkdir()
    with pytest.raises(UnavailableError, match=f"{place} cannot be {told}: "):
        change(place)
