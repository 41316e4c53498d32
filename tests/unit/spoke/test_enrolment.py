"""Certificates that are of no use, saves that fail, names that are taken: each is reported, and followed by the right step."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from datetime import timedelta

import pytest
import yaml

from machinery.clock import ManualClock
from machinery.conditions import CERTIFICATE_ROTATED, TRUE
from machinery.errors import UnavailableError
from machinery.kubeconfig import ClusterEntry, parse_kubeconfig, write_hub_kubeconfig
from machinery.pki import parse_certificate
from spoke.domain.names import choose_names
from spoke.domain.rotation import rotate_at
from spoke.enrolment import Enrolment, Wanted
from spoke.kubeconfigs import connection_of, why_not_recovered
from spoke.ports import RequestState
from spoke.slot import Slot
from tests.fakes.credentials import MemorySecrets
from tests.fakes.hub import MemoryHub, MemoryHubClient
from tests.fakes.stage import OWNER, Stage, until

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


async def test_a_certificate_that_cannot_be_read_costs_a_new_key_and_no_crash(stage: Stage) -> None:
    """OCM's agent uses what it read of the certificate before it looks whether that worked."""
    stage.hub.approve = False
    async with stage.running():
        await until(lambda: stage.hub.requests)
        (first,) = stage.hub.requests.values()
        first.certificate, first.state = b"-----BEGIN CERTIFICATE-----\nrubbish\n-----END CERTIFICATE-----\n", "issued"
        stage.hub.approve = True
        stage.hub.changed()
        await until(lambda: stage.hub.sessions)
    keys = {request.pem for request in stage.hub.requests.values()}
    assert len(keys) == 2


def test_the_hub_kubeconfig_keeps_the_name_that_the_hubs_certificate_must_have() -> None:
    """OCM's agent drops `tls-server-name` between bootstrap and hub kubeconfig."""
    entry = ClusterEntry("hub", "https://10.0.0.1:6443", b"ca", tls_server_name="hub.example.com")
    written = yaml.safe_load(write_hub_kubeconfig(entry))
    assert written["clusters"][0]["cluster"]["tls-server-name"] == "hub.example.com"


async def test_the_condition_of_a_rotation_is_told_though_its_save_failed_at_first(stage: Stage) -> None:
    """OCM's agent loses the condition when the save is repeated."""
    async with stage.at_work():
        leaf = parse_certificate((await stage.secrets.read(OWNER)).contents["tls.crt"])
        stage.secrets.refuse_writes = UnavailableError("etcd is away")  # type: ignore[attr-defined]
        stage.clock.advance(rotate_at(leaf.serial, leaf.not_before, leaf.not_after) - stage.clock.now() + timedelta(1))
        stage.timetable.wake("certificate-rotation")
        await until(lambda: "certificate-rotation" in stage.timetable.jobs)
        stage.secrets.refuse_writes = None  # type: ignore[attr-defined]
        stage.timetable.wake("certificate-rotation")

        def told() -> list[str]:
            reports = [report for session in stage.hub.sessions for report in session.reports]
            return [entry.status for report in reports for entry in report.conditions if entry.type == CERTIFICATE_ROTATED]

        await until(lambda: told()[-1:] == [TRUE])


def over_the_api(stage: Stage) -> dict[str, bytes]:
    """A stored credential of the csr driver."""
    entry = ClusterEntry("hub", "https://127.0.0.1:6443", stage.hub.authority.certificate)
    held = stage.hub.credential()
    return {"kubeconfig": write_hub_kubeconfig(entry), "tls.crt": held.chain, "tls.key": held.key}


async def test_expired_credential_says_why_a_bootstrap_credential_is_needed(joined: Stage) -> None:
    contents = over_the_api(joined)
    assert "driver csr" in why_not_recovered({**contents, "recovery.crt": contents["tls.crt"]})
    contents = dict((await joined.secrets.read(OWNER)).contents)
    assert why_not_recovered(contents) == ""
    del contents["recovery.crt"]
    assert "without a recovery certificate" in why_not_recovered(contents)


async def test_a_rebuilt_cluster_under_an_old_name_is_told_what_to_do(stage: Stage) -> None:
    stage.options = replace(stage.options, cluster_name="berlin")
    await stage.joins()
    stage.cluster._uid = "of-the-cluster-that-was-rebuilt"
    stage.secrets = type(stage.secrets)()
    stage.directory.contents.clear()
    stage.file.write_bytes(stage.hub.bootstrap_kubeconfig())
    async with stage.running() as agent:
        await until(lambda: "belongs to another cluster" in agent.progress.ready().text)
    assert len(stage.hub.sessions) == 1
