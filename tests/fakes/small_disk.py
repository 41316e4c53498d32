"""A small disk of a test's own, which it can fill and free again. Only root can have one."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PORTION = bytes(64 * 1024)


class SmallDisk:
    """Mounted at `place`."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._ballast = place / "ballast"

    def fill(self) -> None:
        """Takes all the room there is."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for portion in (PORTION, b"\0"):
                try:
                    while ballast.write(portion) == len(portion):
                        pass
                except OSError:
                    continue

    def free(self) -> None:
        """Gives it back."""
        self._ballast.unlink(missing_ok=True)


@contextmanager
def small_disk(place: Path, size: str) -> Iterator[SmallDisk]:
    """For the length of the block; `size` as mount reads it. Skips the test of somebody who may not mount."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", "tmpfs", str(place)]
    mounted = subprocess.run(command, check=False, capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk can only be mounted by root: " + mounted.stderr.decode().strip())
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
