"""Strategies of the CredentialIssuer: what is told anew, what stays as it was, and in which order."""

from datetime import timedelta
from random import Random
from typing import Any

import pytest

from hub.domain import credentialissuer as rules
from hub.domain.change import CREDENTIAL_ISSUERS, Key
from hub.domain.credentialissuer import Strategy, in_order, merge
from hub.services import credentialissuers
from machinery.clock import ManualClock
from tests.fakes.memory_store import MemoryStore

API = "hub.example.com/v1alpha1"


def told(kind: str = "KubeClusterSigningCertificate", time: str = "t1", **more: Any) -> dict[str, Any]:
    return {"type": kind, "status": "Success", "reason": "r", "message": "m", "lastUpdateTime": time, **more}


@pytest.mark.parametrize(
    ("before", "new", "after"),
    [
        ([], told(), [told()]),
        ([told(message="old")], told(time="t2"), [told(time="t2")]),
        ([told()], told(time="t2"), [told()]),
        ([told("Zebra"), told("ImpersonationProxy")], told(), [told(), told("ImpersonationProxy"), told("Zebra")]),
    ],
    ids=["new entry", "existing updated", "equal but for the time", "new among others"],
)
def test_a_strategy_takes_the_place_of_its_own_where_more_than_the_time_differs(before: Any, new: Any, after: Any) -> None:
    assert merge(before, new) == after


def test_every_shuffle_is_sorted_into_one_order() -> None:
    strategies = [
        told("KubeClusterSigningCertificate"),
        told("ImpersonationProxy"),
        told("Aardvark"),
        told("Bee"),
        told("Zebra"),
    ]
    random = Random(7)
    for _ in range(200):
        shuffled = random.sample(strategies, len(strategies))
        assert in_order(shuffled) == strategies


async def test_the_issuer_is_made_and_then_written_only_where_it_is_news() -> None:
    clock = ManualClock()
    store = MemoryStore(clock)
    fetched = Strategy("KubeClusterSigningCertificate", "Success", "FetchedKey", "done", "https://k", "Q0E=", "kubernetes/x")

    async def tell(strategy: Strategy) -> bool:
        return await store.run(credentialissuers.tell, strategy, API, "tester")

    assert await tell(fetched) is True
    clock.advance(timedelta(minutes=3))
    assert await tell(fetched) is False, "the time does not move by itself"
    assert await tell(Strategy("KubeClusterSigningCertificate", "Error", "CouldNotFetchKey", "no")) is True
    stored = await store.read(lambda tx: tx.objects.get(CREDENTIAL_ISSUERS, Key("", rules.NAME)))
    assert stored is not None
    [strategy] = stored.document["status"]["strategies"]
    assert (strategy["status"], strategy["reason"], "frontend" in strategy) == ("Error", "CouldNotFetchKey", False)


def test_a_frontend_tells_which_cluster_a_credential_opens() -> None:
    strategy = Strategy("KubeClusterSigningCertificate", "Success", "FetchedKey", "done", "https://k", "Q0E=", "kubernetes/x")
    assert strategy.as_document(ManualClock().now())["frontend"] == {
        "type": "TokenCredentialRequestAPI",
        "tokenCredentialRequestInfo": {"server": "https://k", "certificateAuthorityData": "Q0E="},
    }
