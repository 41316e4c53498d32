"""Clusters that stay silent are marked and removed by policy alone, and never in a hurry."""

from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from hub.api.events import EventRecord
from hub.api.liveness import BrakeLimits
from hub.api.managedclusters import availability as parting
from hub.api.managedclusters import cluster as rules
from hub.api.managedclusters.availability import STALE, StalenessPolicy
from hub.controllers.builder import PERIODIC
from hub.controllers.clock_guard import SETTLED, Steadiness
from hub.controllers.clusters.deletion import Removal
from hub.controllers.clusters.staleness import Staleness
from hub.ports import Transaction
from hub.registry.liveness import taints as aftermath
from hub.registry.managedclusteraddons import service as addons
from hub.registry.managedclusters import service as clusters
from machinery.errors import InvalidError
from machinery.identity import ClusterName
from machinery.meta.conditions import Condition
from machinery.runtime.controller import Controller
from tests.fakes.controllers import work
from tests.unit.hub.conftest import failing
from tests.unit.hub.controllers.conftest import Hub

DAY = timedelta(days=1)
POLICY = StalenessPolicy(mark=7 * DAY, remove=30 * DAY)
C1 = ClusterName("c1")


def aging(
    hub: Hub, policy: StalenessPolicy = POLICY, heard_for: timedelta | None = DAY, settled: timedelta = timedelta()
) -> Controller[str]:
    def since(tx: Transaction) -> object:
        return None if heard_for is None else tx.now - heard_for

    steady = Steadiness(hub.clock, settled)
    reconciler = Staleness(hub.store, policy, BrakeLimits(), since=since, steady=steady)  # type: ignore[arg-type]
    return Controller("staleness", reconciler, clock=hub.clock)


def silent(hub: Hub, name: str = "c1", condition: Condition = rules.SILENT) -> None:
    hub.join(name)
    hub.store.transact(clusters.set_condition, ClusterName(name), condition, "test")


def is_there(hub: Hub, name: str = "c1") -> bool:
    return any(key.name == name and kind.startswith("managedclusters.") for kind, key in hub.store.state.objects)


def mark(hub: Hub, name: str = "c1") -> str | None:
    found = hub.condition(name, STALE)
    return found.status if found else None


async def test_a_silent_cluster_is_marked_and_later_removed_with_the_whole_notice(hub: Hub) -> None:
    silent(hub)
    subject = aging(hub)
    hub.clock.advance(7 * DAY - timedelta(seconds=1))
    await work(subject, PERIODIC)
    assert mark(hub) is None
    hub.clock.advance(timedelta(seconds=1))
    await work(subject, PERIODIC)
    assert mark(hub) == "True"
    await removed_after(hub, subject, 23 * DAY)
    silent(hub)
    hub.clock.advance(100 * DAY)
    await work(subject, PERIODIC)
    await removed_after(hub, subject, 23 * DAY)


async def removed_after(hub: Hub, subject: Controller[str], notice: timedelta) -> None:
    hub.clock.advance(notice - timedelta(seconds=1))
    await work(subject, PERIODIC)
    assert is_there(hub)
    hub.clock.advance(timedelta(seconds=1))
    await work(subject, PERIODIC)
    assert not is_there(hub)


async def test_marking_is_off_by_default_and_without_a_removal_a_mark_is_all(hub: Hub) -> None:
    silent(hub)
    hub.clock.advance(1_000 * DAY)
    await work(aging(hub, StalenessPolicy()), PERIODIC)
    assert mark(hub) is None
    for _ in range(3):
        await work(aging(hub, StalenessPolicy(mark=DAY)), PERIODIC)
        hub.clock.advance(1_000 * DAY)
    assert mark(hub) == "True"


async def test_a_mark_names_the_end_and_goes_when_the_cluster_is_heard_again_whatever_policy_and_clock(hub: Hub) -> None:
    silent(hub)
    for policy, settled in ((POLICY, timedelta()), (StalenessPolicy(), timedelta()), (POLICY, SETTLED)):
        hub.store.transact(clusters.set_condition, C1, rules.SILENT, "test")
        since = hub.clock.now()
        hub.clock.advance(8 * DAY)
        await work(aging(hub), PERIODIC)
        found = hub.condition("c1", STALE)
        assert found is not None
        ends = since + 31 * DAY
        assert (found.status, found.reason, found.message) == (
            "True",
            "SilentForTooLong",
            f"Silent since {since:%FT%TZ}. It is removed at {ends:%FT%TZ} unless it is heard before.",
        )
        hub.store.transact(clusters.set_condition, C1, rules.AVAILABLE, "test")
        await work(aging(hub, policy, settled=settled), PERIODIC)
        assert mark(hub) == "False"


async def test_only_silence_without_a_word_is_stale(hub: Hub) -> None:
    conditions = {"moved": parting.MOVED, "standby": parting.STANDBY, "never": rules.NEVER_JOINED, "ill": rules.UNAVAILABLE}
    for name, condition in conditions.items():
        silent(hub, name, condition)
    hub.clock.advance(8 * DAY)
    await work(aging(hub), PERIODIC)
    assert [name for name in conditions if mark(hub, name) is not None] == ["never"]
    assert mark(hub, "never") == "True"


async def test_after_the_hub_was_away_every_cluster_first_has_a_grace(hub: Hub) -> None:
    silent(hub)
    hub.clock.advance(100 * DAY)
    for heard_for in (None, timedelta(seconds=299)):
        await work(aging(hub, heard_for=heard_for), PERIODIC)
        assert mark(hub) is None
    await work(aging(hub, heard_for=timedelta(seconds=300)), PERIODIC)
    assert mark(hub) == "True"


async def test_the_brake_holds_marks_and_removals(hub: Hub) -> None:
    for number in range(1, 21):
        silent(hub, f"c{number}", rules.AVAILABLE)
    for number in range(1, 15):
        hub.store.transact(clusters.set_condition, ClusterName(f"c{number}"), rules.SILENT, "test")
    policy = StalenessPolicy(mark=timedelta(minutes=1), remove=timedelta(minutes=2))
    hub.clock.advance(timedelta(minutes=5))
    for _ in range(3):
        await work(aging(hub, policy), PERIODIC)
    assert {mark(hub, f"c{number}") for number in range(1, 15)} == {None}


async def test_one_that_fails_holds_up_no_other(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("c1", "c2", "c3"):
        silent(hub, name)
    hub.clock.advance(7 * DAY)
    failing(monkeypatch, aftermath, "age", InvalidError("it breaks a rule"), lambda name, *_: name == "c1")
    with capture_logs() as lines:
        await work(aging(hub), PERIODIC)
    warned = [line["error"] for line in lines if line["event"] == "reconcile failed in part"]
    assert warned == ["1 of 3 failed, the last of them c1: it breaks a rule"]
    assert [mark(hub, name) for name in ("c1", "c2", "c3")] == [None, "True", "True"]


async def test_a_removal_waits_for_add_ons_as_a_deletion_by_hand_does_and_is_told_of(hub: Hub) -> None:
    """Nobody answers for its add-ons any more: what they hold is an operator's to give up, and not a policy's."""
    silent(hub)
    held = {"metadata": {"name": "a", "namespace": "c1", "finalizers": ["example.com/pre-delete"]}}
    hub.store.transact(addons.put, held, None, "admin")
    for days in (7, 23):
        hub.clock.advance(days * DAY)
        await work(aging(hub), PERIODIC)
    told: list[EventRecord] = []
    removing = Removal(hub.store, timedelta(hours=1), told.append)
    while await removing.reconcile("c1") == timedelta():
        pass
    hub.clock.advance(timedelta(hours=1))
    await removing.reconcile("c1")
    assert [(each.reason, each.cluster) for each in told] == [("DeletionOverdue", "c1")]
    assert "hubctl delete cluster c1 --force" in told[0].message
    revision = hub.revision
    await work(aging(hub), PERIODIC)
    await removing.reconcile("c1")
    assert (is_there(hub), hub.revision, len(told)) == (True, revision, 1)


@pytest.mark.parametrize("is_marked", [True, False])
async def test_a_database_clock_that_is_a_year_ahead_for_minutes_marks_and_removes_nobody(hub: Hub, *, is_marked: bool) -> None:
    silent(hub)
    subject, minute = aging(hub, settled=SETTLED), timedelta(minutes=1)
    hub.clock.advance(8 * DAY if is_marked else DAY)
    for _ in range(12):
        await work(subject, PERIODIC)
        hub.clock.advance(minute)
    assert mark(hub) == ("True" if is_marked else None)
    for jump in (365 * DAY, -365 * DAY):
        hub.clock.set_forward(jump)
        for _ in range(9):
            await work(subject, PERIODIC)
            hub.clock.advance(minute)
    assert (is_there(hub), mark(hub)) == (True, "True" if is_marked else None)
    hub.clock.advance(31 * DAY)
    for _ in range(2):
        await work(subject, PERIODIC)
    assert mark(hub) == "True" if not is_marked else not is_there(hub)
