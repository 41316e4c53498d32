"""One credential in two secrets: written by the release before, by a crash between the two writes, or by somebody's hand."""

from datetime import timedelta

import pytest

from machinery.errors import ConflictError
from machinery.identity import HubId
from machinery.pki import parse_certificate
from spoke.domain.credential import EPOCH, HUB_ID
from spoke.layout import owner_of
from spoke.ownership import Ownership
from spoke.slot import OwnedSlot, Slot
from tests.fakes.hub import HUB_ID as HUB
from tests.fakes.hub import MemoryHub
from tests.fakes.stage import OWNER, SLOT, Stage, nothing_pends, until
from tests.unit.spoke.test_agent import is_available

OTHER = HubId("aaaaaaaa-0000-4000-8000-000000000002")


@pytest.fixture
async def joined(stage: Stage) -> Stage:
    async with stage.running():
        await until(lambda: is_available(stage))
    return stage


async def edit(stage: Stage, name: str, **contents: bytes | None) -> None:
    present = await stage.secrets.read(name)
    merged = {**present.contents, **{key.replace("_", "-"): value for key, value in contents.items()}}
    kept = {key: value for key, value in merged.items() if value is not None}
    await stage.secrets.write(name, kept, present.version)


async def test_the_secret_of_the_release_before_is_taken_over_without_a_new_registration(joined: Stage) -> None:
    """It names no hub, keeps no epoch, and there is no slot."""
    await edit(joined, OWNER, hub_id=None, epoch=None)
    await joined.secrets.delete(SLOT)
    before = (await joined.secrets.read(OWNER)).contents["tls.crt"]
    async with joined.running():
        await until(lambda: is_available(joined) and not joined.hub.session.over)
    contents = (await joined.secrets.read(OWNER)).contents
    assert (contents["tls.crt"], contents[HUB_ID]) == (before, HUB.encode())
    assert (await joined.secrets.read(SLOT)).contents["tls.crt"] == before
    assert len(joined.hub.issued) == len(joined.hub.requests) == 1


async def test_the_credential_of_a_hub_that_is_left_stays_in_its_slot(joined: Stage) -> None:
    """Also when the release before left it in the owner's secret alone, and the agent leaves that hub at once."""
    await joined.secrets.delete(SLOT)
    ownership = Ownership(joined.secrets, joined.clock)
    before = await ownership.read()
    await ownership.give(before, OTHER, {"tls.crt": b"new"})
    assert (await joined.secrets.read(SLOT)).contents["tls.crt"] == before.contents["tls.crt"]
    assert (await ownership.read()).hub_id == OTHER


async def test_a_request_of_the_release_before_is_gone_on_with(stage: Stage) -> None:
    """Its slot holds nothing but the pending request."""
    stage.hub.approve = False
    async with stage.running():
        await until(lambda: stage.hub.requests)
    stage.hub.approve_request(next(iter(stage.hub.requests)))
    async with stage.running():
        await until(lambda: is_available(stage))
    assert len(stage.hub.requests) == 1
    assert await nothing_pends(stage.secrets)


async def test_an_owners_secret_of_last_week_gives_way_to_the_newer_credential_in_the_slot(joined: Stage) -> None:
    last_week = (await joined.secrets.read(OWNER)).contents
    joined.clock.advance(timedelta(days=25))
    async with joined.running():
        await until(lambda: len(joined.hub.issued) == 2 and joined.hub.session.beats)
        await until(lambda: parse_certificate(joined.hub.session.identity.certificate).serial == joined.hub.issued[1])
    present = await joined.secrets.read(OWNER)
    await joined.secrets.write(OWNER, last_week, present.version)
    async with joined.running():
        await until(lambda: joined.hub.open_sessions and joined.hub.session.beats)
        assert parse_certificate(joined.hub.session.identity.certificate).serial == joined.hub.issued[1]
    assert (await joined.secrets.read(OWNER)).contents["tls.crt"] == present.contents["tls.crt"]
    assert len(joined.hub.issued) == 2


async def test_a_renewal_never_writes_over_a_hub_that_became_the_owner_meanwhile(joined: Stage) -> None:
    """Two copies of an agent, one of them stopped and continued: the late one keeps its new certificate in its own slot."""
    await edit(joined, OWNER, hub_id=OTHER.encode(), epoch=b"7")
    slot, owner = Slot(joined.secrets, SLOT), Slot(joined.secrets, OWNER)
    before = (await joined.secrets.read(OWNER)).contents
    with pytest.raises(ConflictError, match="has become the owner"):
        await OwnedSlot(slot, owner, HUB, moves=False).change(lambda present: {**present, "tls.crt": b"late"})
    assert (await joined.secrets.read(OWNER)).contents == before
    assert (await joined.secrets.read(SLOT)).contents["tls.crt"] == b"late"


async def test_a_registration_moves_in_and_leaves_the_epoch(joined: Stage) -> None:
    await edit(joined, OWNER, epoch=b"7")
    slot, owner = Slot(joined.secrets, f"{OWNER}-{OTHER[:8]}"), Slot(joined.secrets, OWNER)
    await OwnedSlot(slot, owner, OTHER, moves=True).change(lambda _: {"tls.crt": b"new", "pending.key": b"p"})
    contents = (await joined.secrets.read(OWNER)).contents
    assert (contents["tls.crt"], contents[HUB_ID], contents[EPOCH]) == (b"new", OTHER.encode(), b"7")
    assert "pending.key" not in contents
    assert owner_of(contents) == OTHER


def test_the_owner_is_whom_the_secret_names_else_whose_kubeconfig_it_holds(stage: Stage) -> None:
    other = MemoryHub(stage.clock, hub_id=OTHER)
    kubeconfig = other.bootstrap_kubeconfig()
    assert owner_of({}) is None
    assert owner_of({"tls.crt": b"x", "kubeconfig": b"nonsense: ["}) is None
    assert owner_of({"tls.crt": b"x", "kubeconfig": kubeconfig}) == OTHER
    assert owner_of({"tls.crt": b"x", "kubeconfig": kubeconfig, HUB_ID: HUB.encode()}) == HUB
