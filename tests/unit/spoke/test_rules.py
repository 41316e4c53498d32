"""Names, the way to a certificate, rotation instants, add-on leases."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from machinery.conditions import FALSE, TRUE, UNKNOWN
from machinery.errors import InvalidError
from machinery.identity import AGENT_ID_ALPHABET, AddOnName, AgentId, ClusterName, SerialNumber
from spoke.domain.addon import GRACE, AddOn, AddOnRegistration, lease_condition, secret_name
from spoke.domain.bootstrap import TRANSITIONS, Event, Pending, State, TransitionError, after, resume
from spoke.domain.names import Names, choose_names, fresh_agent_id
from spoke.domain.rotation import BACKDATE, EARLIEST, LATEST, rotate_at, threshold

NOW = datetime(2026, 11, 21, tzinfo=UTC)
NAMES = Names(ClusterName("berlin"), AgentId("abcde"))
FRESH = ("fresh", "fffff")


@dataclass(frozen=True, slots=True)
class Source:
    options: tuple[str, str]
    stored: tuple[str, str]
    chosen: tuple[str, str]


@pytest.mark.parametrize(
    "row",
    [
        Source(("opt", "ooooo"), ("old", "ddddd"), ("opt", "ooooo")),
        Source(("", ""), ("old", "ddddd"), ("old", "ddddd")),
        Source(("opt", ""), ("old", "ddddd"), ("opt", "ddddd")),
        Source(("", ""), ("", ""), FRESH),
        Source(("", "ooooo"), ("", ""), ("fresh", "ooooo")),
    ],
)
def test_a_name_comes_from_the_first_source_that_has_one(row: Source) -> None:
    names = choose_names(options=row.options, stored=row.stored, fresh=FRESH)
    assert (names.cluster, names.agent) == row.chosen


@pytest.mark.parametrize("name", ["test-cluster-!@#", "-a", "a-", "A", "a" * 64])
def test_a_cluster_name_that_names_no_namespace_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(InvalidError, match="lower-case"):
        choose_names(options=(name, ""), stored=("", ""), fresh=FRESH)


def test_fresh_agent_ids_are_five_letters_of_the_alphabet_and_differ() -> None:
    drawn = {fresh_agent_id(entropy * 7919) for entropy in range(1000)}
    assert all(len(text) == 5 and set(text) <= set(AGENT_ID_ALPHABET) for text in drawn)
    assert len(drawn) > 990


PATH = [
    Event.PERSISTED,
    Event.ENSURED,
    Event.ACCEPTED,
    Event.NOTED,
    Event.ISSUED,
    Event.STORED,
    Event.MIRRORED,
    Event.FORGOTTEN,
]


def test_the_events_of_an_undisturbed_registration_lead_to_done() -> None:
    state = State.UNPREPARED
    passed = [state]
    for event in PATH:
        state = after(state, event)
        passed.append(state)
    assert passed == list(State)


@pytest.mark.parametrize("event", [Event.DENIED, Event.USELESS])
def test_a_request_without_a_future_is_followed_by_a_new_key(event: Event) -> None:
    assert after(State.REQUESTED, event) is State.UNPREPARED


def test_a_forgotten_request_keeps_its_key() -> None:
    assert after(State.REQUESTED, Event.UNKNOWN) is State.PREPARED


def test_a_stored_certificate_is_never_followed_by_another_request() -> None:
    late = {State.ISSUED, State.STORED, State.MIRRORED, State.DONE}
    back = {event for (state, event), then in TRANSITIONS.items() if state in late and then not in late}
    assert back == {Event.HUB_CHANGED}


def test_what_is_not_in_the_table_is_a_mistake() -> None:
    with pytest.raises(TransitionError, match="STORED cannot happen while PREPARED"):
        after(State.PREPARED, Event.STORED)


@pytest.mark.parametrize(
    ("pending", "state"),
    [
        (None, State.UNPREPARED),
        (Pending(NAMES, b"k", b"r"), State.PREPARED),
        (Pending(NAMES, b"k", b"r", "berlin-x"), State.REQUESTED),
        (Pending(Names(ClusterName("paris"), NAMES.agent), b"k", b"r", "paris-x"), State.UNPREPARED),
    ],
)
def test_a_restart_goes_on_where_the_stored_request_is(pending: Pending | None, state: State) -> None:
    assert resume(pending, NAMES) is state


def test_a_pending_key_is_not_shown() -> None:
    assert "secret" not in repr(Pending(NAMES, b"secret", b"r"))


def test_thresholds_are_drawn_once_per_serial_and_spread_over_the_window() -> None:
    drawn = [threshold(SerialNumber(number)) for number in range(1000)]
    assert all(LATEST < value <= EARLIEST for value in drawn)
    assert drawn == [threshold(SerialNumber(number)) for number in range(1000)]
    assert max(drawn) - min(drawn) > 0.045
    assert abs(sum(drawn) / 1000 - 0.225) < 0.002


@pytest.mark.parametrize("life", [timedelta(days=30), timedelta(hours=1), timedelta(seconds=20)])
def test_a_certificate_is_due_in_the_last_quarter_of_its_life_however_short(life: timedelta) -> None:
    due = rotate_at(SerialNumber(5), NOW - BACKDATE, NOW + life)
    assert NOW + life * 0.75 <= due <= NOW + life * 0.80


def test_a_certificate_that_began_just_now_is_due_before_its_end() -> None:
    assert NOW < rotate_at(SerialNumber(5), NOW, NOW + timedelta(minutes=2)) < NOW + timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Lease:
    age: timedelta | None
    status: str
    reason: str


@pytest.mark.parametrize(
    "row",
    [
        Lease(None, UNKNOWN, "ManagedClusterAddOnLeaseNotFound"),
        Lease(timedelta(), TRUE, "ManagedClusterAddOnLeaseUpdated"),
        Lease(GRACE - timedelta(microseconds=1), TRUE, "ManagedClusterAddOnLeaseUpdated"),
        Lease(GRACE, FALSE, "ManagedClusterAddOnLeaseUpdateStopped"),
    ],
)
def test_an_addon_is_available_for_five_minutes_after_a_renewal(row: Lease) -> None:
    condition = lease_condition(AddOn(AddOnName("logs"), ""), NOW - row.age if row.age is not None else None, NOW)
    assert (condition.status, condition.reason) == (row.status, row.reason)
    assert "logs" in condition.message


def test_a_missing_lease_of_a_hosted_addon_names_the_cluster() -> None:
    assert "paris" in lease_condition(AddOn(AddOnName("logs"), "", "paris"), None, NOW).message


def test_secrets_of_addons_have_ocms_names() -> None:
    hub = AddOnRegistration("kubernetes.io/kube-apiserver-client", "u")
    assert secret_name(AddOnName("logs"), hub) == "logs-hub-kubeconfig"
    assert secret_name(AddOnName("logs"), AddOnRegistration("a.io/b/c", "u")) == "logs-a.io-b-c-client-cert"
