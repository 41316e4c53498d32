"""The owner's secret: every change is one guarded write, and never puts an older credential back."""

import pytest

from machinery.clock import ManualClock
from machinery.identity import HubId
from spoke.ownership import OvertakenError, Ownership
from tests.fakes.credentials import MemorySecrets

OWNER = "hub-kubeconfig-secret"
A, B = HubId("aaaaaaaa-0000"), HubId("bbbbbbbb-0000")
FIRST, SECOND = {"tls.crt": b"first"}, {"tls.crt": b"second"}


@pytest.fixture
def secrets() -> MemorySecrets:
    return MemorySecrets()


@pytest.fixture
def ownership(secrets: MemorySecrets) -> Ownership:
    return Ownership(secrets, ManualClock())


async def test_a_change_of_owner_names_the_hub_with_its_credential_and_a_higher_epoch(ownership: Ownership) -> None:
    first = await ownership.give(await ownership.read(), A, FIRST)
    second = await ownership.give(first, B, SECOND, told=first.epoch + 100)
    assert (second.hub_id, second.contents["tls.crt"]) == (B, b"second")
    assert second.epoch == first.epoch + 101
    assert (await ownership.read()).same_order(second)


async def test_the_same_owner_keeps_its_epoch(ownership: Ownership) -> None:
    first = await ownership.give(await ownership.read(), A, FIRST)
    assert (await ownership.give(first, A, SECOND)).epoch == first.epoch


async def test_of_two_copies_that_change_the_owner_one_sees_that_it_was_overtaken(ownership: Ownership) -> None:
    known = await ownership.give(await ownership.read(), A, FIRST)
    won = await ownership.give(known, B, SECOND)
    with pytest.raises(OvertakenError, match="another copy"):
        await ownership.give(known, A, FIRST)
    with pytest.raises(OvertakenError):
        await ownership.raise_epoch(known)
    with pytest.raises(OvertakenError):
        await ownership.confirm(known)
    await ownership.confirm(won)


async def test_a_healed_epoch_leaves_the_credential_that_was_renewed_meanwhile(
    ownership: Ownership, secrets: MemorySecrets
) -> None:
    known = await ownership.give(await ownership.read(), A, FIRST)
    present = await secrets.read(OWNER)
    await secrets.write(OWNER, {**present.contents, "tls.crt": b"renewed"}, present.version)
    healed = await ownership.raise_epoch(known, told=known.epoch + 5)
    assert (healed.contents["tls.crt"], healed.epoch) == (b"renewed", known.epoch + 6)


@pytest.mark.parametrize("left", [None, {"tls.crt": b"last week", "hub-id": B.encode(), "epoch": b"1"}])
async def test_a_secret_that_was_deleted_or_put_back_is_written_over(
    ownership: Ownership, secrets: MemorySecrets, left: dict[str, bytes] | None
) -> None:
    known = await ownership.give(await ownership.read(), A, FIRST)
    await secrets.delete(OWNER)
    if left is not None:
        await secrets.write(OWNER, left, None)
    healed = await ownership.raise_epoch(known)
    assert (healed.hub_id, healed.contents["tls.crt"], healed.epoch) == (A, b"first", known.epoch + 1)


async def test_what_others_put_into_the_secret_stays(ownership: Ownership, secrets: MemorySecrets) -> None:
    known = await ownership.give(await ownership.read(), A, FIRST)
    present = await secrets.read(OWNER)
    await secrets.write(OWNER, {**present.contents, "note": b"theirs"}, present.version)
    assert (await ownership.give(known, B, SECOND)).contents["note"] == b"theirs"
