"""The hubs of an agent's list, in the order in which it prefers them; and which of them holds its session.

The rules of the choice:

1. The owner is kept while it is good: on the list, ready, and not resting after a failure.
2. Unless a hub that comes before it in the list has been ready for the time after which the agent goes back (off by default).
3. Else the first good hub of the list.
4. Else, with the policy SKIP, the first that has not accepted the cluster: the session waits there. With WAIT such a hub is as
   good as one that has.
5. Else whichever hub with a credential may be tried again first, the owner before others: those that somebody else finds
   unreachable come last, as he goes on looking, and tells when they are back.
6. Else the first where a credential is to be had. A hub without one is no choice while the owner has one, until the owner has
   been lost for as long as it takes to give it up; and none at all while somebody registers ahead of need.

Of a hub that rests the caller waits for the end of its rest. Every decision has its reason, in words for people.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from machinery.identity import HubId

EPOCH_UNIT = timedelta(milliseconds=1)
CREDIBLE = timedelta(hours=1)
"""How far ahead of this machine's clock an epoch may be that a hub claims."""
TAKEN = timedelta(hours=24)
"""How far ahead of its own clock a hub takes one (`hub.registry.multihub.owners`)."""
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class HubState(Enum):
    """How the agent stands with a hub of its list."""

    READY = "ready"
    """It has a credential, and the hub has accepted the cluster."""
    NOT_ACCEPTED = "not accepted"
    """It has a credential; the hub has not accepted the cluster."""
    REGISTERING = "registering"
    """It has no credential yet."""
    DENIED = "denied"
    """The hub has denied the cluster."""
    UNREACHABLE = "unreachable"
    """It has a credential; the hub did not answer when it was asked last."""
    REVOKED = "revoked"
    """The hub has revoked the credential: it takes a bootstrap credential that was made since."""
    LOST = "lost"
    """It has no credential and no way to one: its bootstrap credential has ended."""


@dataclass(frozen=True, slots=True)
class ListedHub:
    """One hub of the list, as the agent tells of it."""

    hub_id: HubId
    name: str
    """How the agent calls it: the name of its bootstrap kubeconfig's file or secret."""
    url: str
    state: HubState
    credential_ends_at: datetime | None = None


class Unaccepted(Enum):
    """What to do at a hub that has not accepted the cluster."""

    SKIP = "skip"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class HubSelectionPolicy:
    """What the operator wants of the choice."""

    unaccepted: Unaccepted = Unaccepted.SKIP
    fail_back_after: timedelta | None = None
    """How long a preferred hub must have been ready before the agent goes back to it; None: it never does."""
    give_up_after: timedelta = timedelta(minutes=10)
    """How long the owner may be lost before the agent registers elsewhere, where it does not register ahead of need."""
    registers_ahead: bool = True


@dataclass(frozen=True, slots=True)
class HubCandidate:
    """A hub of the list with what the agent remembers of it."""

    hub: ListedHub
    rests_until: datetime | None = None
    """Something failed there; it is not to be tried again before."""
    trouble: str = ""
    """What failed there last."""
    ready_since: datetime | None = None

    def rests(self, now: datetime) -> bool:
        return self.rests_until is not None and now < self.rests_until


class Why(Enum):
    """Why a hub was chosen; the reason of the Event that tells of it."""

    KEPT = "HubKept"
    CHOSEN = "HubChosen"
    FAILED_OVER = "HubFailedOver"
    FAILED_BACK = "HubFailedBack"
    MOVED = "HubMoved"


@dataclass(frozen=True, slots=True)
class HubDecision:
    """Where the session is to be, and why."""

    hub_id: HubId
    why: Why
    message: str
    not_before: datetime | None = None
    """The hub rests until then; None: at once."""


@dataclass(frozen=True, slots=True)
class HubsStatus:
    """All of it, for people."""

    owner: HubId | None = None
    epoch: int = 0
    hubs: tuple[ListedHub, ...] = ()
    decision: HubDecision | None = None
    """The last one that changed anything."""
    decided_at: datetime | None = None
    candidates: tuple[HubCandidate, ...] = ()
    """The same hubs, with what failed there."""


class _Rank(Enum):
    GOOD = 0
    UNACCEPTED = 1
    RESTING = 2
    AWAY = 3
    WITHOUT = 4
    DENIED = 5
    LOST = 6


def choose(
    candidates: Sequence[HubCandidate],
    owner: HubId | None,
    now: datetime,
    policy: HubSelectionPolicy,
    *,
    lost_since: datetime | None = None,
) -> HubDecision | None:
    """The hub for the session; None: the list is empty. `owner` holds it now, or held it until `lost_since`."""
    held = next((each for each in candidates if each.hub.hub_id == owner), None)
    if held is not None and is_good(held, now, policy):
        return _back(candidates, held, now, policy) or HubDecision(
            held.hub.hub_id, Why.KEPT, f"the hub {held.hub.name} is the owner, and good"
        )
    given_up = not policy.registers_ahead and (lost_since is None or now - lost_since >= policy.give_up_after)

    def order(entry: tuple[int, HubCandidate]) -> tuple[int, datetime, bool, int]:
        place, each = entry
        rank = _Rank.RESTING if given_up and each.hub.state is HubState.REGISTERING else _rank(each, now, policy)
        return rank.value, max(each.rests_until or now, now), each.hub.hub_id != owner, place

    best = min(enumerate(candidates), key=order, default=None)
    return _decision(best[1], held, owner, now) if best is not None else None


def is_good(candidate: HubCandidate, now: datetime, policy: HubSelectionPolicy) -> bool:
    """Whether a session there would do its work, as far as is known."""
    return _rank(candidate, now, policy) is _Rank.GOOD


def is_better(candidates: Iterable[HubCandidate], owner: HubId | None, now: datetime, policy: HubSelectionPolicy) -> bool:
    """Whether there is a good hub beside the owner."""
    return any(each.hub.hub_id != owner and is_good(each, now, policy) for each in candidates)


def refuse_move(candidates: Sequence[HubCandidate], target: HubId, now: datetime) -> str:
    """Why the agent does not go to the hub that it was asked to go to; empty: it does."""
    ready = ", ".join(each.hub.name for each in candidates if each.hub.state is HubState.READY) or "none"
    wanted = next((each for each in candidates if each.hub.hub_id == target), None)
    if wanted is None:
        return f"the hub {target} is not on the list; ready: {ready}"
    if wanted.hub.state is not HubState.READY:
        return f"the hub {wanted.hub.name} is {wanted.hub.state.value}; ready: {ready}"
    if wanted.rests(now):
        return f"the hub {wanted.hub.name} has failed a moment ago: {wanted.trouble}"
    return ""


def next_epoch(kept: int, told: int, hub_time: datetime, now: datetime) -> int:
    """The epoch of the next owner: above the one that is kept and above all credible claims of hubs.

    `hub_time`: a secret restored from last week must not reuse an order that another hub has seen since. `now` is this
    machine's clock: no hub, by a claim or by its time, makes an epoch that other hubs refuse. A kept one that they refuse is
    replaced.
    """
    seen = (kept if keeps(kept, now) else 0, told if is_credible(told, now) else 0)
    return max(*(each + 1 for each in seen), min(_epoch_at(hub_time), _epoch_at(now + CREDIBLE)))


def is_credible(claimed: int, now: datetime) -> bool:
    """Whether an epoch that a hub claims may be true. `now`: by this machine's clock, as no hub sets it."""
    return claimed <= _epoch_at(now + CREDIBLE)


def keeps(epoch: int, now: datetime) -> bool:
    """Whether the agent's own epoch is one that hubs take."""
    return epoch <= _epoch_at(now + TAKEN)


def incredible(epoch: int) -> str:
    """Why an epoch is not believed, and what to do."""
    return (
        f"it claims the epoch {epoch}, more than {CREDIBLE / timedelta(hours=1):g} h ahead of this machine's clock, and is "
        "not believed: if this clock is right, have an administrator of that hub run `hubctl revoke cluster`, and register anew"
    )


def _epoch_at(moment: datetime) -> int:
    return (moment - _BEGINNING) // EPOCH_UNIT


def _back(
    candidates: Sequence[HubCandidate], held: HubCandidate, now: datetime, policy: HubSelectionPolicy
) -> HubDecision | None:
    """To a hub that comes before the owner, when it is time."""
    if policy.fail_back_after is None:
        return None
    for each in candidates:
        if each is held:
            return None
        since = each.ready_since
        steady = since is not None and now - since >= policy.fail_back_after
        if steady and each.hub.state is HubState.READY and not each.rests(now):
            seconds = policy.fail_back_after.total_seconds()
            message = f"the hub {each.hub.name} is preferred to {held.hub.name}, and has been ready for {seconds:g} s"
            return HubDecision(each.hub.hub_id, Why.FAILED_BACK, message)
    return None


def _rank(candidate: HubCandidate, now: datetime, policy: HubSelectionPolicy) -> _Rank:
    state = candidate.hub.state
    if state is HubState.DENIED:
        return _Rank.DENIED
    if state in (HubState.LOST, HubState.REVOKED):
        return _Rank.LOST
    if state is HubState.REGISTERING:
        return _Rank.WITHOUT
    if state is HubState.UNREACHABLE:
        return _Rank.AWAY
    if candidate.rests(now):
        return _Rank.RESTING
    waited_for = state is HubState.READY or policy.unaccepted is Unaccepted.WAIT
    return _Rank.GOOD if waited_for else _Rank.UNACCEPTED


def _decision(best: HubCandidate, held: HubCandidate | None, owner: HubId | None, now: datetime) -> HubDecision:
    name, state = best.hub.name, best.hub.state.value
    rests = best.rests_until if best.rests(now) else None
    if best is held:
        trouble = f": {best.trouble}" if best.trouble else ""
        return HubDecision(best.hub.hub_id, Why.KEPT, f"no other hub is good; the owner {name} is {state}{trouble}", rests)
    if owner is None:
        return HubDecision(best.hub.hub_id, Why.CHOSEN, f"the hub {name} is the first that will do: {state}", rests)
    left = f"the hub {owner} is not on the list any more"
    if held is not None:
        trouble = f"lost: {held.trouble}" if held.trouble else held.hub.state.value
        left = f"the hub {held.hub.name} is {trouble}"
    return HubDecision(best.hub.hub_id, Why.FAILED_OVER, f"{left}; the hub {name} is {state}", rests)
