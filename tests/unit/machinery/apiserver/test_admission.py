"""A storage behind an admission: what is asked before a write, and what is told after it."""

import pytest

from machinery.apiserver.admission import Admission, AdmittedStorage
from machinery.apiserver.memory import MemoryStorage
from machinery.apiserver.storage import Actor, Document, GroupResource, Key
from machinery.errors import ForbiddenError, NotFoundError

THINGS, ONE, BOB = GroupResource("example.com", "things"), Key("", "one"), Actor("bob")


class Door:
    """A storage whose admission remembers what it was asked and lets nothing red in."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.told: list[int] = []
        self.storage = AdmittedStorage(MemoryStorage(), self._admit, self._written)

    def _admit(self, write: Admission) -> None:
        self.asked.append((write.old["colour"] if write.old else "", write.new["colour"]))
        if write.new["colour"] == "red":
            raise ForbiddenError("not red")

    async def _written(self, resource: GroupResource, revision: int) -> None:
        assert resource == THINGS
        self.told.append(revision)

    async def create(self, colour: str, *, dry_run: bool = False) -> None:
        await self.storage.create(THINGS, ONE, {"metadata": {"name": "one"}, "colour": colour}, BOB, dry_run=dry_run)

    async def paint(self, colour: str | None) -> None:
        def change(old: Document) -> Document | None:
            return old if colour == old["colour"] else None if colour is None else {**old, "colour": colour}

        await self.storage.update(THINGS, ONE, change, BOB)


async def test_a_write_is_asked_about_before_and_told_of_after() -> None:
    door = Door()
    await door.create("green")
    await door.paint("blue")
    assert door.asked == [("", "green"), ("green", "blue")]
    assert door.told == [2, 3]


async def test_what_is_refused_is_not_written() -> None:
    door = Door()
    with pytest.raises(ForbiddenError):
        await door.create("red")
    with pytest.raises(NotFoundError):
        await door.storage.get(THINGS, ONE)
    await door.create("green")
    with pytest.raises(ForbiddenError):
        await door.paint("red")
    assert b"green" in (await door.storage.get(THINGS, ONE)).document
    assert door.told == [2]


async def test_a_dry_run_is_asked_about_and_nobody_told() -> None:
    door = Door()
    await door.create("green", dry_run=True)
    with pytest.raises(ForbiddenError):
        await door.create("red", dry_run=True)
    assert door.told == []


async def test_what_changes_nothing_and_what_goes_is_not_asked_about() -> None:
    door = Door()
    await door.create("green")
    await door.paint("green")
    await door.paint(None)
    assert door.asked == [("", "green")]
