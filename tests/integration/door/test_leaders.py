"""Which replica leads, as an operator sees it: by hubctl, by kubectl, and only to be looked at."""

import json
from datetime import timedelta

import pytest

from machinery.election import Candidate
from tests.integration.door.conftest import HubUnderTest

pytestmark = pytest.mark.kubectl
LEASE = timedelta(seconds=15)


async def test_an_operator_sees_who_leads_in_which_term_since_when(hub: HubUnderTest) -> None:
    assert "there is no leader to show" in (await hub.hubctl("get", "leader")).err
    first = await hub.store.run(lambda tx: tx.leaders.take(None, Candidate("hub-0", "a"), LEASE))
    await hub.store.run(lambda tx: tx.leaders.take(first, Candidate("hub-1", "b"), LEASE))
    table = (await hub.hubctl("get", "leader")).out.splitlines()
    assert table[0].split() == ["NAME", "HOLDER", "TERM", "SINCE", "RENEWED", "TRANSITIONS"]
    name, holder, term, since, renewed, transitions = table[1].split()
    assert (name, holder, term, transitions) == ("hub", "hub-1", "2", "1")
    assert since.endswith("s")
    assert renewed.endswith("s")
    shown = json.loads((await hub.kubectl("get", "hubleader", "hub", "-o", "json")).out)
    assert shown["status"] | {"acquireTime": "", "renewTime": ""} == {
        "holder": "hub-1",
        "term": 2,
        "transitions": 1,
        "leaseDuration": "15s",
        "acquireTime": "",
        "renewTime": "",
    }


async def test_a_released_lock_has_nobody(hub: HubUnderTest) -> None:
    held = await hub.store.run(lambda tx: tx.leaders.take(None, Candidate("hub-0", "a"), LEASE))
    await hub.store.run(lambda tx: tx.leaders.release(held))
    assert "<nobody>" in (await hub.kubectl("get", "hubleaders")).out


async def test_nobody_makes_or_changes_a_leader_by_the_api(hub: HubUnderTest) -> None:
    await hub.store.run(lambda tx: tx.leaders.take(None, Candidate("hub-0", "a"), LEASE))
    assert (await hub.kubectl("delete", "hubleader", "hub")).code == 1
    patched = await hub.kubectl("patch", "hubleader", "hub", "--type=merge", "-p", '{"status":{"holder":"me"}}')
    assert patched.code == 1
    assert "NotFound" in (await hub.kubectl("get", "hubleader", "other")).err
