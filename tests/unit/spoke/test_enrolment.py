"""Obtaining a certificate from a hub whose signer is of no use."""

from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from machinery.clock import ManualClock
from machinery.errors import UnavailableError
from machinery.kubeconfig import parse_kubeconfig
from spoke.domain.names import choose_names
from spoke.enrolment import Enrolment, Wanted
from spoke.kubeconfigs import connection_of
from spoke.ports import RequestState
from spoke.slot import Slot
from tests.fakes.credentials import MemorySecrets
from tests.fakes.hub import MemoryHub, MemoryHubClient

NAMES = choose_names(options=("berlin", "agent"), stored=("", ""), fresh=("", ""))


class UselessClient(MemoryHubClient):
    """What its hub issues cannot be read, `useless` times."""

    useless = 1_000

    async def follow_request(self, name: str) -> AsyncGenerator[RequestState, None]:
        async for state in super().follow_request(name):
            if state.state == "issued" and self.useless:
                self.useless -= 1
                yield replace(state, certificate=b"no certificate")
            else:
                yield state


def enrolment() -> Enrolment:
    secrets = MemorySecrets()
    wanted = Wanted(names=NAMES, cluster_uid="uid", subject=NAMES.subject, ensure_cluster=True)
    return Enrolment(wanted, pending=Slot(secrets, "pending"), target=Slot(secrets, "target"), extra={})


def client_of(hub: MemoryHub) -> UselessClient:
    connection = connection_of(parse_kubeconfig(hub.bootstrap_kubeconfig(), source="a file"))
    return UselessClient(hub, connection.identity)


async def test_a_signer_that_issues_nothing_of_use_is_asked_for_two_certificates_and_one_more_each_time_again() -> None:
    hub = MemoryHub(ManualClock())
    client, wanted = client_of(hub), enrolment()
    for asked in (2, 3):
        with pytest.raises(UnavailableError, match="of no use"):
            await wanted.run(client)
        assert hub.calls.count("submit_request") == asked


async def test_one_useless_certificate_is_followed_by_a_good_one_at_once() -> None:
    hub = MemoryHub(ManualClock())
    client, wanted = client_of(hub), enrolment()
    client.useless = 1
    await wanted.run(client)
    assert wanted.done
    assert hub.calls.count("submit_request") == 2
