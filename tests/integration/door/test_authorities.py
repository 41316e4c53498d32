"""The hub's CAs at a real door: what hubctl shows of them, what it may order, and who may not."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from hub.domain.authority import Authority, Phase, Wish
from hub.domain.certificate import Lifetimes
from hub.issuer.local import make_authority
from hub.ports import Transaction
from hub.services import authorities
from hub.services.authorities import Made, authority_id
from tests.integration.door.conftest import HubUnderTest


async def begun(hub: HubUnderTest) -> str:
    first = await hub.store.run(authorities.adopt, Made(hub.issuer.trust_bundle, None))
    return str(first.id)


async def every(hub: HubUnderTest) -> dict[str, Authority]:
    return {each.id: each for each in await hub.store.read(authorities.all_of)}


async def test_hubctl_shows_the_ca_with_its_phase_and_what_is_of_it(hub: HubUnderTest) -> None:
    first = await begun(hub)
    await hub.agent("edge1")
    shown = await hub.hubctl("ca", "status")
    assert shown.code == 0, shown.err
    assert [line.split()[:2] for line in shown.out.splitlines()] == [["NAME", "PHASE"], [first, "Issuing"]]
    one = json.loads((await hub.hubctl("get", "ca", first, "-o", "json")).out)["status"]
    assert one["signed"]["agent"] == 1
    assert one["signed"]["operator"] >= 1
    assert (one["phase"], one["compromised"], one["waitsFor"]) == ("Issuing", False, [])
    assert one["certificate"].encode() == hub.issuer.trust_bundle
    assert "PRIVATE" not in json.dumps(one)


async def test_an_operator_orders_a_change_and_the_leader_is_to_make_it(hub: HubUnderTest) -> None:
    first = await begun(hub)
    assert (await hub.hubctl("ca", "rotate")).code == 0
    assert (await hub.hubctl("ca", "rotate")).code == 0, "ordered twice it is one change"
    one = (await every(hub))[authority_id(hub.issuer.trust_bundle)]
    assert (one.wish, one.wished_by, one.phase) == (Wish.ROTATE, "admin", Phase.ISSUING)
    refused = await hub.hubctl("ca", "proceed", first)
    assert (refused.code, "nothing of it is waited for" in refused.err) == (1, True)
    made, _key = make_authority(Lifetimes(), (await hub.store.read(lambda tx: tx.now)))
    second = (await hub.store.run(authorities.propose, Made(made.certificate, None))).id
    assert (await hub.hubctl("ca", "proceed", second)).code == 0
    assert (await every(hub))[second].wish is Wish.PROCEED
    again = await hub.hubctl("ca", "rotate")
    assert (again.code, "is Distributing still" in again.err) == (1, True)
    assert (await hub.hubctl("ca", "proceed", "0123456789abcdef")).code == 3


async def test_before_a_ca_is_given_up_it_is_said_who_needs_a_new_bootstrap_credential(hub: HubUnderTest) -> None:
    first = await begun(hub)
    await hub.join("edge1")
    await hub.agent("edge1")
    await hub.store.run(_accept_all)
    kept = await hub.hubctl("ca", "rotate", "--compromised")
    assert kept.code != 0
    assert "1 agents will need a new bootstrap credential:\n  edge1\n" in kept.out
    assert (await every(hub))[authority_id(hub.issuer.trust_bundle)].wish is None, "asking is not doing"
    done = await hub.hubctl("ca", "rotate", "--compromised", "--within", "5s", "--yes")
    assert done.code == 0, done.err
    one = (await every(hub))[authority_id(hub.issuer.trust_bundle)]
    assert (one.id, one.wish) == (first, Wish.COMPROMISED)
    assert one.ends_at is not None
    before = one.ends_at
    assert (await hub.hubctl("ca", "rotate", "--compromised", "--within", "1h", "--yes")).code == 0
    assert (await every(hub))[one.id].ends_at == before, "it never gets more time"


def _accept_all(tx: Transaction) -> None:
    from hub.domain.change import MANAGED_CLUSTERS, Query  # noqa: PLC0415 - a test's shorthand
    from hub.services import clusters  # noqa: PLC0415 - the same
    from machinery.identity import ClusterName  # noqa: PLC0415 - the same

    for stored in tx.objects.find(MANAGED_CLUSTERS, Query()).items:
        clusters.set_accepted(tx, ClusterName(stored.key.name), True, "admin")  # noqa: FBT003 - accepted


@pytest.mark.parametrize("action", ["rotate", "proceed", "compromised"])
async def test_agents_and_strangers_have_no_say(hub: HubUnderTest, action: str) -> None:
    await begun(hub)
    agent = await hub.agent("edge1")
    words = {"rotate": ("rotate",), "proceed": ("proceed", "x"), "compromised": ("rotate", "--compromised", "--yes")}[action]
    refused = await hub.hubctl("ca", *words, path=agent)
    assert refused.code == 1
    assert "cannot" in refused.err
    assert all(each.wish is None for each in (await every(hub)).values())


async def test_what_a_ca_waits_for_is_told_in_words(hub: HubUnderTest) -> None:
    await begun(hub)
    await hub.join("edge1")
    await hub.agent("edge1")
    await hub.store.run(_accept_all)
    one = (await every(hub))[authority_id(hub.issuer.trust_bundle)]
    outgoing = replace(one, phase=Phase.OUTGOING, since=one.since + timedelta(seconds=1))
    await hub.store.run(lambda tx: tx.authorities.put(outgoing))
    told = (await hub.hubctl("ca", "status")).out
    assert f"{one.id} waits for 1 agents holding a certificate of it" in told
    assert "certificates of it that operators have" in told
