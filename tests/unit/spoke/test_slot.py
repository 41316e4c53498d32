"""A secret that others change too."""

import pytest

from machinery.errors import ConflictError
from spoke.ports import SecretSnapshot
from spoke.slot import ATTEMPTS, Contents, Slot
from tests.fakes.credentials import MemorySecrets


async def test_a_change_of_others_between_read_and_write_is_kept() -> None:
    secrets = MemorySecrets()
    slot = Slot(secrets, "s")
    await slot.change(lambda _: {"ours": b"1"})
    present = await secrets.read("s")
    await secrets.write("s", {**present.contents, "theirs": b"2"}, present.version)
    assert await slot.change(lambda before: {**before, "ours": b"3"}) == {"ours": b"3", "theirs": b"2"}


async def test_a_secret_that_others_created_or_deleted_meanwhile_is_written_all_the_same() -> None:
    secrets = MemorySecrets()
    slot = Slot(secrets, "s")
    assert await slot.read() == {}
    await secrets.write("s", {"theirs": b"1"}, None)
    assert await slot.change(lambda before: {**before, "ours": b"2"}) == {"theirs": b"1", "ours": b"2"}
    await secrets.delete("s")
    assert await slot.change(lambda before: {**before, "ours": b"3"}) == {"ours": b"3"}


async def test_the_first_write_after_a_read_costs_no_second_read() -> None:
    class Counting(MemorySecrets):
        reads = 0

        async def read(self, name: str) -> SecretSnapshot:
            self.reads += 1
            return await super().read(name)

    secrets = Counting()
    slot = Slot(secrets, "s")
    await slot.read()
    await slot.change(lambda _: {"a": b"1"})
    await slot.change(lambda _: {"a": b"2"})
    assert secrets.reads == 1


async def test_a_secret_that_changes_all_the_time_is_given_up_with_the_conflict() -> None:
    tried = 0

    class Disturbed(MemorySecrets):
        async def write(self, name: str, contents: Contents, version: str | None) -> SecretSnapshot:
            del contents, version
            nonlocal tried
            tried += 1
            raise ConflictError(f'secret "{name}" changed since it was read')

    with pytest.raises(ConflictError):
        await Slot(Disturbed(), "s").change(lambda before: before)
    assert tried == ATTEMPTS
