"""Replicas that sign a revocation list at the same moment show one and the same in the end, whatever the store."""

import asyncio

from hub.ports import Store
from hub.services import revocation_lists as lists
from tests.unit.hub.test_revocation_lists import FIRST, TwoSigners

AT_ONCE = 8


async def test_replicas_that_sign_at_once_end_with_one_list(store: Store) -> None:
    signer = TwoSigners()
    signed = await asyncio.gather(*(store.run(lists.sign, signer, FIRST) for _ in range(AT_ONCE)))
    kept = await store.read(lists.standing, signer, FIRST)
    assert kept is not None
    assert kept in signed
    assert len({each.number for each in signed}) == len({each.der for each in signed})
    assert kept.number == max(each.number for each in signed)
