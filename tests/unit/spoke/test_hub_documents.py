"""What an agent writes into a hub's objects and reads out of them, and what it makes of a hub's errors."""

import asyncio
import gc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import grpc
import pytest
from grpc import aio

from machinery import errors
from machinery.identity import AddOnName
from machinery.meta.conditions import AVAILABLE, FALSE, HUB_ACCEPTED, JOINED, TRUE, UNKNOWN, Condition
from machinery.runtime.clock import ManualClock
from machinery.wire.session.v1 import session_pb2 as wire
from spoke.domain.addon import KUBE_SIGNER, AddOnRegistration
from spoke.domain.next_step import SessionLoss
from spoke.domain.report import AgentEvent, ClusterReport, ReportedClaim
from spoke.ports.hub import HubLostError, SessionEpochError, SessionHello
from spoke.transports.grpc.errors import DROPPED, DROPPED_PAUSE, lost_error, to_error
from spoke.transports.grpc.session import GrpcSession, MessageQueue
from spoke.transports.kubernetes import addons, documents

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLIER = "2025-12-31T00:00:00Z"
ACCEPTED = {"type": HUB_ACCEPTED, "status": TRUE, "reason": "r", "message": "m", "lastTransitionTime": EARLIER}
GOOD = Condition(AVAILABLE, TRUE, "ManagedClusterAvailable", "fine")
REPORT = ClusterReport(
    conditions=(Condition(JOINED, TRUE, "j", "m"), GOOD),
    complete=True,
    capacity={"cpu": "4"},
    allocatable={"cpu": "3"},
    kubernetes_version="v1.34.2",
    claims=(ReportedClaim("id.k8s.io", "x"),),
    node_count=2,
)
GROUP = "system:open-cluster-management:cluster:c1:addon:logs"
DEFAULT = AddOnRegistration(KUBE_SIGNER, f"{GROUP}:agent:logs", (GROUP,))
Code = grpc.StatusCode


def cluster(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "c1", "uid": "u", "resourceVersion": "7"},
        "spec": {"hubAcceptsClient": True, **spec},
        "status": status or {},
    }


def test_a_resource_that_vanished_leaves_the_capacity_and_what_others_added_stays() -> None:
    status = {"capacity": {"cpu": "4", "gpu": "1", "sockets": "2"}, "allocatable": {"cpu": "3", "gpu": "1"}}
    changes = documents.status_patch(cluster(status), REPORT, NOW)["status"]
    assert (changes["capacity"], changes["allocatable"]) == ({"nodes": "2", "gpu": None}, {"gpu": None})
    full, old = ClusterReport(conditions=(GOOD,), complete=False), {**ACCEPTED, "type": AVAILABLE}
    assert set(documents.status_patch(cluster({"capacity": {"cpu": "4"}}), full, NOW)["status"]) == {"conditions"}
    for was, dated in ((TRUE, EARLIER), (UNKNOWN, "2026-01-01T12:00:00Z")):
        (after,) = documents.status_patch(cluster({"conditions": [{**old, "status": was}]}), full, NOW)["status"]["conditions"]
        assert after["lastTransitionTime"] == dated, "a transition is dated only when the status changes"


def test_a_cluster_is_accepted_by_its_spec_unless_the_hub_says_that_it_failed_and_its_lease_lasts_as_the_hub_says() -> None:
    assert documents.desired_of(cluster(), ()).accepted
    assert documents.desired_of(cluster({"conditions": [ACCEPTED]}), ()).accepted
    assert not documents.desired_of(cluster({"conditions": [{**ACCEPTED, "status": FALSE}]}), ()).accepted
    assert not documents.desired_of(cluster(hubAcceptsClient=False), ()).accepted
    assert (documents.desired_of(None, None).accepted, documents.desired_of(cluster(), None).addons_known) == (False, False)
    for seconds, expected in ((None, 60), (0, 60), (7, 7)):
        assert documents.desired_of(cluster(leaseDurationSeconds=seconds), ()).lease_duration == timedelta(seconds=expected)
    lease = {"metadata": {"resourceVersion": "3"}, "spec": {"holderIdentity": "h", "renewTime": "old"}}
    beaten = {**lease, "spec": {"holderIdentity": "h", "renewTime": "2026-01-01T12:00:00.000000Z"}}
    assert documents.renewed(lease, NOW) == beaten, "a beat changes the time alone"


def test_request_is_issued_when_it_is_approved_and_has_a_certificate() -> None:
    rows = [("", b"", "pending"), ("", b"C", "pending"), ("Approved", b"", "approved"), ("Approved", b"C", "issued")]
    for kinds, certificate, state in [*rows, ("Approved Failed", b"", "failed"), ("Denied", b"", "denied")]:
        conditions = [{"type": kind, "status": TRUE, "reason": "r", "message": "m"} for kind in kinds.split()]
        found = documents.request_state({"status": {"conditions": conditions}}, certificate, NOW)
        assert found.state == state, (kinds, certificate)


def add_on(*registrations: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "logs", "namespace": "c1"}, "status": {"registrations": list(registrations), **status}}


def test_registrations_are_read_in_both_versions_with_ocms_defaults() -> None:
    custom = {"signerName": "e.org/s", "subject": {"user": "u", "organizationUnits": ["o"]}}
    beta = {"signerName": KUBE_SIGNER, "subject": {"user": "u", "groups": ["g"]}}
    rows: list[tuple[dict[str, Any], AddOnRegistration | None]] = [
        ({"type": "kubeClient", "kubeClient": {}}, DEFAULT),
        ({"type": "kubeClient", "kubeClient": {"driver": "csr"}}, replace(DEFAULT, driver="csr")),
        ({"type": "kubeClient", "kubeClient": {"driver": "token"}}, replace(DEFAULT, driver="token")),
        *(({"type": "kubeClient"}, DEFAULT), ({"type": "customSigner", "customSigner": {}}, None)),
        ({"type": "strange"}, None),
        ({"type": "customSigner", "customSigner": custom}, AddOnRegistration("e.org/s", "u", (), ("o",))),
        (beta, AddOnRegistration(KUBE_SIGNER, "u", ("g",), driver="csr")),
    ]
    read = [(entry, addons.add_on_of(add_on(entry)).registrations) for entry, _ in rows]
    assert read == [(entry, (expected,) if expected else ()) for entry, expected in rows]


def test_an_add_on_says_where_it_lives() -> None:
    document = add_on(namespace="from-status", healthCheck={"mode": "Customized"})
    document["metadata"]["deletionTimestamp"] = EARLIER
    document["metadata"]["annotations"] = {"addon.open-cluster-management.io/hosting-cluster-name": "big"}
    read = addons.add_on_of(document)
    assert (read.name, read.namespace, read.hosting_cluster_name) == (AddOnName("logs"), "from-status", "big")
    assert (read.health_check_mode, read.deleting) == ("Customized", True)


def test_the_driver_is_noted_in_every_registration_at_the_hubs_api() -> None:
    """OCM notes it in the first one alone."""
    custom = {"type": "customSigner", "customSigner": {"signerName": "e.org/s"}}
    present = add_on({"type": "kubeClient"}, custom, {"type": "kubeClient", "kubeClient": {"driver": "csr"}})
    present["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    patch = addons.report_patch(present, (), "token", NOW)
    noted = patch["status"]["registrations"]
    assert ([entry.get("kubeClient", {}).get("driver") for entry in noted], noted[1]) == (["token", None, "token"], custom)
    assert noted[0]["kubeClient"]["subject"] == {"user": "system:serviceaccount:c1:logs-agent"}
    done = {**present, "status": patch["status"]}
    assert addons.report_patch(done, (), "token", NOW) == {}
    back = addons.report_patch(done, (), "csr", NOW)["status"]["registrations"]
    assert back[0]["kubeClient"] == {"driver": "csr"}, "a certificate has its default subject again"


def test_an_event_is_about_the_cluster_or_an_add_on_in_the_clusters_namespace() -> None:
    about: dict[str, Any] = {"apiVersion": "v", "metadata": {"name": "logs", "namespace": "c1", "uid": "u"}}
    sent = documents.event(about, "ManagedClusterAddOn", AgentEvent("Failed", "x" * 2000, "Warning"), "agent", NOW)
    assert (sent["metadata"]["namespace"], sent["reason"], sent["type"], len(sent["note"])) == ("c1", "Failed", "Warning", 1024)
    assert sent["regarding"] == {"apiVersion": "v", "kind": "ManagedClusterAddOn", **about["metadata"]}


def status(code: grpc.StatusCode, **trailing: str) -> aio.AioRpcError:
    return aio.AioRpcError(code, aio.Metadata(), aio.Metadata(*trailing.items()), details="said")


def test_reason_decides_and_without_one_the_code_and_an_unclear_one_is_tried_again() -> None:
    made = {reason: to_error(status(Code.UNKNOWN, reason=reason)) for reason in errors.BY_REASON}
    assert {reason: type(error) for reason, error in made.items()} == dict(errors.BY_REASON)
    assert {error.message for error in made.values()} == {"said"}
    codes = [
        (Code.UNAUTHENTICATED, errors.UnauthorizedError, SessionLoss.UNAUTHENTICATED),
        (Code.PERMISSION_DENIED, errors.ForbiddenError, SessionLoss.REFUSED),
        (Code.NOT_FOUND, errors.NotFoundError, SessionLoss.FORGOTTEN),
        (Code.ABORTED, errors.ConflictError, SessionLoss.SUPERSEDED),
        (Code.INVALID_ARGUMENT, errors.InvalidError, SessionLoss.REFUSED),
        (Code.RESOURCE_EXHAUSTED, errors.TooManyRequestsError, SessionLoss.REFUSED),
        (Code.DEADLINE_EXCEEDED, errors.DeadlineError, SessionLoss.UNREACHABLE),
    ]
    unclear = (Code.UNAVAILABLE, Code.CANCELLED, Code.INTERNAL, Code.UNKNOWN, Code.UNIMPLEMENTED)
    codes += [(code, errors.UnavailableError, SessionLoss.UNREACHABLE) for code in unclear]
    found = [(code, type(to_error(status(code, reason="NoSuchReason"))), lost_error(status(code)).loss) for code, _, _ in codes]
    assert found == codes


def test_cause_tells_losses_apart_and_one_of_a_later_release_is_ignored() -> None:
    rows = [
        (Code.UNAUTHENTICATED, "AuthorityRetired", SessionLoss.OUTLIVED),
        (Code.PERMISSION_DENIED, "ClusterDenied", SessionLoss.REFUSED),
        (Code.UNAUTHENTICATED, "CertificateRevoked", SessionLoss.REVOKED),
        (Code.PERMISSION_DENIED, "ClusterRevoked", SessionLoss.REVOKED),
        (Code.UNAUTHENTICATED, "ClusterDeleted", SessionLoss.FORGOTTEN),
        (Code.NOT_FOUND, "ClusterDeleted", SessionLoss.FORGOTTEN),
        (Code.UNAUTHENTICATED, "ClusterRebuilt", SessionLoss.REFUSED),
        (Code.UNAUTHENTICATED, "CertificateExpired", SessionLoss.UNAUTHENTICATED),
        (Code.UNAUTHENTICATED, "SomethingNew", SessionLoss.UNAUTHENTICATED),
        (Code.UNAVAILABLE, "", SessionLoss.UNREACHABLE),
    ]
    assert [(code, cause, lost_error(status(code, cause=cause)).loss) for code, cause, _ in rows] == rows
    causes = {cause: to_error(status(code, cause=cause)).denial_cause for code, cause, _ in rows}
    assert causes == {cause: errors.DenialCause(cause) if cause in set(errors.DenialCause) else None for cause in causes}


def test_pause_that_the_hub_asks_for_is_kept_also_when_it_is_busy() -> None:
    trailing = {"grpc-retry-pushback-ms": "1500"}
    assert to_error(status(Code.UNAVAILABLE, **trailing)).retry_after == timedelta(seconds=1.5)
    assert lost_error(status(Code.UNAVAILABLE, **trailing)).retry_after == timedelta(seconds=1.5)
    assert lost_error(status(Code.UNAVAILABLE, **{"grpc-retry-pushback-ms": "soon"})).retry_after is None
    lost = lost_error(status(Code.RESOURCE_EXHAUSTED, **{"grpc-retry-pushback-ms": "2500"}))
    assert (lost.loss, lost.retry_after) == (SessionLoss.UNREACHABLE, timedelta(seconds=2.5))
    dropped = lost_error(status(Code.CANCELLED))
    assert (dropped.message, dropped.retry_after) == (DROPPED, DROPPED_PAUSE)


def test_a_stale_epoch_is_reported_with_the_one_that_the_hub_knows() -> None:
    lost = lost_error(status(Code.FAILED_PRECONDITION, reason="StaleEpoch", epoch="12"))
    assert isinstance(lost, SessionEpochError)
    assert (lost.loss, lost.epoch, lost.message) == (SessionLoss.STALE, 12, "said")
    assert isinstance(lost.fresh_copy(), SessionEpochError)
    others: list[dict[str, str]] = [{"reason": "StaleEpoch"}, {"reason": "StaleEpoch", "epoch": "-1"}, {"epoch": "12"}]
    assert {lost_error(status(Code.FAILED_PRECONDITION, **trailing)).loss for trailing in others} == {SessionLoss.REFUSED}


class EndedWhileWriting:
    """Welcomes; then the hub ends the stream while a beat is written."""

    def __init__(self, outbox: MessageQueue) -> None:
        self._outbox = outbox

    async def read(self) -> object:
        is_hello = (await anext(self._outbox)).HasField("hello")
        return wire.HubMessage(welcome=wire.Welcome(hub_id="hub")) if is_hello else aio.EOF

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.ABORTED

    async def details(self) -> str:
        return "superseded"

    async def trailing_metadata(self) -> aio.Metadata:
        return aio.Metadata(("reason", "Conflict"))

    def cancel(self) -> None:
        pass


async def beat_once() -> tuple[SessionLoss, str]:
    """How the first beat fails; nothing of the session stays."""
    session = GrpcSession(cast("Any", EndedWhileWriting), ManualClock())
    await session.start(SessionHello("uid"))
    with pytest.raises(HubLostError) as lost:
        await session.beat(available=True)
    await session.stop()
    assert session._outbox.get_nowait() is None, "gRPC waits for no further message"
    return lost.value.loss, lost.value.message


async def test_a_beat_that_the_end_overtakes_says_why_and_leaves_no_stray_error() -> None:
    stray: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: stray.append(context))
    assert await asyncio.create_task(beat_once()) == (SessionLoss.SUPERSEDED, "superseded")
    gc.collect()
    assert stray == []
