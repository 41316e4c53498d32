"""What an agent writes into a hub's objects, and what it reads out of them: functions of values."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from machinery.identity import AddOnName
from machinery.meta.conditions import AVAILABLE, FALSE, HUB_ACCEPTED, JOINED, TRUE, UNKNOWN, Condition
from spoke.domain.addon import KUBE_SIGNER, AddOnRegistration
from spoke.domain.report import AgentEvent, ClusterReport, ReportedClaim
from spoke.transports.kubernetes.documents import (
    add_on_of,
    desired_of,
    event,
    renewed,
    report_patch,
    request_state,
    status_patch,
)

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


def cluster(status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "c1", "uid": "u", "resourceVersion": "7"},
        "spec": {"hubAcceptsClient": True, **spec},
        "status": status or {},
    }


def test_a_resource_that_vanished_leaves_the_capacity_and_what_others_added_stays() -> None:
    status = {"capacity": {"cpu": "4", "gpu": "1", "sockets": "2"}, "allocatable": {"cpu": "3", "gpu": "1"}}
    changes = status_patch(cluster(status), REPORT, NOW)["status"]
    assert changes["capacity"] == {"nodes": "2", "gpu": None}
    assert changes["allocatable"] == {"gpu": None}
    told, old = ClusterReport(conditions=(GOOD,), complete=False), {**ACCEPTED, "type": AVAILABLE}
    assert set(status_patch(cluster({"capacity": {"cpu": "4"}}), told, NOW)["status"]) == {"conditions"}
    for was, dated in ((TRUE, EARLIER), (UNKNOWN, "2026-01-01T12:00:00Z")):
        before = cluster({"conditions": [{**old, "status": was}]})
        (after,) = status_patch(before, told, NOW)["status"]["conditions"]
        assert after["lastTransitionTime"] == dated, "a transition is dated only when the status changes"


def test_a_cluster_is_accepted_by_its_spec_unless_the_hub_says_that_it_failed_and_its_lease_lasts_as_the_hub_says() -> None:
    assert desired_of(cluster(), ()).accepted
    assert desired_of(cluster({"conditions": [ACCEPTED]}), ()).accepted
    assert not desired_of(cluster({"conditions": [{**ACCEPTED, "status": FALSE}]}), ()).accepted
    assert not desired_of(cluster(hubAcceptsClient=False), ()).accepted
    assert not desired_of(None, None).accepted
    assert not desired_of(cluster(), None).addons_known
    for seconds, expected in ((None, 60), (0, 60), (7, 7)):
        assert desired_of(cluster(leaseDurationSeconds=seconds), ()).lease_duration == timedelta(seconds=expected)
    lease = {"metadata": {"resourceVersion": "3"}, "spec": {"holderIdentity": "h", "renewTime": "old"}}
    beaten = {**lease, "spec": {"holderIdentity": "h", "renewTime": "2026-01-01T12:00:00.000000Z"}}
    assert renewed(lease, NOW) == beaten, "a beat changes the time alone"


def test_request_is_issued_when_it_is_approved_and_has_a_certificate() -> None:
    rows = [("", b"", "pending"), ("", b"C", "pending"), ("Approved", b"", "approved"), ("Approved", b"C", "issued")]
    for kinds, certificate, state in [*rows, ("Approved Failed", b"", "failed"), ("Denied", b"", "denied")]:
        conditions = [{"type": kind, "status": TRUE, "reason": "r", "message": "m"} for kind in kinds.split()]
        found = request_state({"status": {"conditions": conditions}}, certificate, b"", NOW)
        assert found.state == state, (kinds, certificate)


def add_on(*registrations: dict[str, Any], **status: Any) -> dict[str, Any]:
    metadata: dict[str, Any] = {"name": "logs", "namespace": "c1"}
    return {"metadata": metadata, "status": {"registrations": list(registrations), **status}}


GROUP = "system:open-cluster-management:cluster:c1:addon:logs"
DEFAULT = AddOnRegistration(KUBE_SIGNER, f"{GROUP}:agent:logs", (GROUP,))


def test_registrations_are_read_in_both_versions_with_ocms_defaults() -> None:
    custom = {"signerName": "e.org/s", "subject": {"user": "u", "organizationUnits": ["o"]}}
    beta = {"signerName": KUBE_SIGNER, "subject": {"user": "u", "groups": ["g"]}}
    rows: list[tuple[dict[str, Any], AddOnRegistration | None]] = [
        ({"type": "kubeClient", "kubeClient": {}}, DEFAULT),
        ({"type": "kubeClient", "kubeClient": {"driver": "csr"}}, replace(DEFAULT, driver="csr")),
        ({"type": "kubeClient", "kubeClient": {"driver": "token"}}, replace(DEFAULT, driver="token")),
        ({"type": "kubeClient"}, DEFAULT),
        ({"type": "customSigner", "customSigner": {}}, None),
        ({"type": "strange"}, None),
        ({"type": "customSigner", "customSigner": custom}, AddOnRegistration("e.org/s", "u", (), ("o",))),
        (beta, AddOnRegistration(KUBE_SIGNER, "u", ("g",), driver="csr")),
    ]
    read = [(entry, add_on_of(add_on(entry)).registrations) for entry, _ in rows]
    assert read == [(entry, (expected,) if expected else ()) for entry, expected in rows]


def test_an_add_on_says_where_it_lives() -> None:
    document = add_on(namespace="from-status", healthCheck={"mode": "Customized"})
    document["metadata"]["deletionTimestamp"] = EARLIER
    document["metadata"]["annotations"] = {"addon.open-cluster-management.io/hosting-cluster-name": "big"}
    read = add_on_of(document)
    assert (read.name, read.namespace, read.hosting_cluster_name) == (AddOnName("logs"), "from-status", "big")
    assert (read.health_check_mode, read.deleting) == ("Customized", True)


def test_the_driver_is_noted_in_every_registration_at_the_hubs_api() -> None:
    """OCM notes it in the first one alone."""
    custom = {"type": "customSigner", "customSigner": {"signerName": "e.org/s"}}
    present = add_on({"type": "kubeClient"}, custom, {"type": "kubeClient", "kubeClient": {"driver": "csr"}})
    present["metadata"] |= {"uid": "u", "resourceVersion": "1"}
    patch = report_patch(present, (), "token", NOW)
    noted = patch["status"]["registrations"]
    assert [entry.get("kubeClient", {}).get("driver") for entry in noted] == ["token", None, "token"]
    assert noted[1] == custom
    assert noted[0]["kubeClient"]["subject"] == {"user": "system:serviceaccount:c1:logs-agent"}
    done = {**present, "status": patch["status"]}
    assert report_patch(done, (), "token", NOW) == {}
    back = report_patch(done, (), "csr", NOW)["status"]["registrations"]
    assert back[0]["kubeClient"] == {"driver": "csr"}, "a certificate has its default subject again"


def test_an_event_is_about_the_cluster_or_an_add_on_in_the_clusters_namespace() -> None:
    about: dict[str, Any] = {"apiVersion": "v", "metadata": {"name": "logs", "namespace": "c1", "uid": "u"}}
    told = event(about, "ManagedClusterAddOn", AgentEvent("Failed", "x" * 2000, "Warning"), "agent", NOW)
    assert (told["metadata"]["namespace"], told["reason"], told["type"], len(told["note"])) == ("c1", "Failed", "Warning", 1024)
    assert told["regarding"] == {"apiVersion": "v", "kind": "ManagedClusterAddOn", **about["metadata"]}
