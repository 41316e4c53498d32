"""The hubs of an agent's list in the order of preference, and the choice of the hub that owns the session.

Rules of the choice:

1. The owner stays while it is good: it is on the list and ready, and does not rest (the agent does not choose a hub for some
   time after a failure). Exception: fail-back, if a hub before it in the list has been ready for the fail-back time (off by
   default).
2. Otherwise the choice is the first good hub of the list.
3. If no hub is good: the first hub that has not accepted the cluster (policy SKIP). The session waits there for acceptance.
   With the policy WAIT, a hub that has not accepted the cluster counts as good.
4. Otherwise: of the hubs with a credential, the hub whose rest ends first; if two end together, the owner. Hubs that standby
   registration has found unreachable come last, because standby registration retries them and reports when they answer.
5. Otherwise: the first hub where the agent can obtain a credential. Without standby registration, such a hub is also chosen
   when the owner has been lost for `give_up_after`, although the owner has a credential.

If the chosen hub rests, the caller waits for the end of the rest. Every decision contains a reason for operators.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from itertools import takewhile

from machinery.identity import HubId

EPOCH_UNIT = timedelta(milliseconds=1)
CREDIBLE = timedelta(hours=1)
"""The agent ignores a hub's epoch that, as ms since 1970, is ahead of this machine's clock by more than this."""
ACCEPTED_AHEAD = timedelta(hours=24)
"""A hub refuses an agent's epoch that is ahead of the hub's clock by more than this (`hub.registry.owners`)."""
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


class HubState(Enum):
    READY = "ready"
    """The agent has a credential, and the hub has accepted the cluster."""
    NOT_ACCEPTED = "not accepted"
    """The agent has a credential; the hub has not accepted the cluster."""
    REGISTERING = "registering"
    DENIED = "denied"
    UNREACHABLE = "unreachable"
    """The agent has a credential; the hub did not answer the last call."""
    REVOKED = "revoked"
    """The hub has revoked the credential. The agent needs a bootstrap credential that was made after the revocation."""
    LOST = "lost"
    """The agent has no credential and cannot obtain one, because its bootstrap credential has ended."""


class HubAcceptance(Enum):
    """Whether a hub accepts this cluster. WAITING: no decision yet. UNKNOWN: the hub does not report its decision."""

    UNKNOWN = auto()
    WAITING = auto()
    ACCEPTED = auto()
    DENIED = auto()


@dataclass(frozen=True, slots=True)
class ListedHub:
    hub_id: HubId
    name: str
    """The name of the file or secret with the hub's bootstrap kubeconfig."""
    url: str
    state: HubState
    credential_ends_at: datetime | None = None


class Unaccepted(Enum):
    """How to treat a hub that has not accepted the cluster."""

    SKIP = "skip"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class HubSelectionPolicy:
    unaccepted: Unaccepted = Unaccepted.SKIP
    fail_back_after: timedelta | None = None
    """Time for which a preferred hub must have been ready before the agent returns to it; None: the agent never returns."""
    give_up_after: timedelta = timedelta(minutes=10)
    """Time for which the owner must be lost before an agent without standby registration registers at another hub."""
    registers_ahead: bool = True


@dataclass(frozen=True, slots=True)
class HubCandidate:
    """A hub of the list with its recent failures."""

    hub: ListedHub
    rests_until: datetime | None = None
    """After a failure: no attempt before this time."""
    trouble: str = ""
    ready_since: datetime | None = None

    def rests(self, now: datetime) -> bool:
        return self.rests_until is not None and now < self.rests_until


class ChoiceReason(Enum):
    """Why a hub was chosen. The Event about the choice has this reason."""

    KEPT = "HubKept"
    CHOSEN = "HubChosen"
    FAILED_OVER = "HubFailedOver"
    FAILED_BACK = "HubFailedBack"
    MOVED = "HubMoved"


@dataclass(frozen=True, slots=True)
class HubDecision:
    hub_id: HubId
    why: ChoiceReason
    message: str
    not_before: datetime | None = None


@dataclass(frozen=True, slots=True)
class HubsStatus:
    owner: HubId | None = None
    epoch: int = 0
    hubs: tuple[ListedHub, ...] = ()
    decision: HubDecision | None = None
    """The last decision that differed from the decision before it."""
    decided_at: datetime | None = None
    candidates: tuple[HubCandidate, ...] = ()
    """The hubs of `hubs`, with their failures."""


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
    """Choose the hub for the session; None if the list is empty. `lost_since`: when the session with `owner` was lost."""
    held = next((each for each in candidates if each.hub.hub_id == owner), None)
    if held is not None and is_good(held, now, policy):
        return _back(candidates, held, now, policy) or HubDecision(
            held.hub.hub_id, ChoiceReason.KEPT, f"the hub {held.hub.name} is the owner and ready"
        )
    given_up = not policy.registers_ahead and (lost_since is None or now - lost_since >= policy.give_up_after)

    def order(entry: tuple[int, HubCandidate]) -> tuple[int, datetime, bool, int]:
        place, each = entry
        rank = _Rank.RESTING if given_up and each.hub.state is HubState.REGISTERING else _rank(each, now, policy)
        return rank.value, max(each.rests_until or now, now), each.hub.hub_id != owner, place

    best = min(enumerate(candidates), key=order, default=None)
    return _decision(best[1], held, owner, now) if best is not None else None


def is_good(candidate: HubCandidate, now: datetime, policy: HubSelectionPolicy) -> bool:
    """Whether the hub does not rest and is ready. With the policy WAIT, it need not have accepted the cluster."""
    return _rank(candidate, now, policy) is _Rank.GOOD


def is_better(candidates: Iterable[HubCandidate], owner: HubId | None, now: datetime, policy: HubSelectionPolicy) -> bool:
    """Whether a hub other than the owner is good (`is_good`)."""
    return any(each.hub.hub_id != owner and is_good(each, now, policy) for each in candidates)


def refuse_move(candidates: Sequence[HubCandidate], target: HubId, now: datetime) -> str:
    """Return why the agent refuses a move to `target`; empty: the agent moves."""
    ready = ", ".join(each.hub.name for each in candidates if each.hub.state is HubState.READY) or "none"
    wanted = next((each for each in candidates if each.hub.hub_id == target), None)
    if wanted is None:
        return f"the hub {target} is not on the list; ready: {ready}"
    if wanted.hub.state is not HubState.READY:
        return f"the hub {wanted.hub.name} is {wanted.hub.state.value}; ready: {ready}"
    if wanted.rests(now):
        return f"the hub {wanted.hub.name} has just failed: {wanted.trouble}"
    return ""


def next_epoch(kept: int, reported: int, hub_time: datetime, now: datetime) -> int:
    """Return the epoch of the next owner: above `kept`, the stored epoch, and above `reported` if that is credible.

    The epoch is also at least `hub_time`: if the owner's secret was restored from a backup, the agent must not reuse an epoch
    that another hub has stored. `now`, this machine's clock, bounds the result, so that neither `reported` nor `hub_time` can
    produce an epoch that other hubs refuse. A `kept` that hubs refuse (`is_accepted_epoch`) does not count.
    """
    seen = (kept if is_accepted_epoch(kept, now) else 0, reported if is_credible(reported, now) else 0)
    return max(*(each + 1 for each in seen), min(_epoch_at(hub_time), _epoch_at(now + CREDIBLE)))


def is_credible(claimed: int, now: datetime) -> bool:
    """Whether an epoch that a hub claims is plausible. `now` is the time of this machine, which hubs cannot change."""
    return claimed <= _epoch_at(now + CREDIBLE)


def is_accepted_epoch(epoch: int, now: datetime) -> bool:
    """Whether hubs accept this epoch from the agent. `now`: this machine's time."""
    return epoch <= _epoch_at(now + ACCEPTED_AHEAD)


def epoch_too_high(epoch: int) -> str:
    """Return the error text for an epoch that is not credible, with the remedy."""
    return (
        f"it claims the epoch {epoch}, more than {CREDIBLE / timedelta(hours=1):g} h ahead of this machine's clock, and is "
        "not believed: if this clock is right, an administrator of that hub runs `hubctl revoke cluster`; then register again"
    )


def _epoch_at(moment: datetime) -> int:
    return (moment - _BEGINNING) // EPOCH_UNIT


def _back(
    candidates: Sequence[HubCandidate], held: HubCandidate, now: datetime, policy: HubSelectionPolicy
) -> HubDecision | None:
    """Return the decision to fail back to a hub before the owner in the list; None: no fail-back is due."""
    if policy.fail_back_after is None:
        return None
    for each in takewhile(lambda each: each is not held, candidates):
        since = each.ready_since
        steady = since is not None and now - since >= policy.fail_back_after
        if steady and each.hub.state is HubState.READY and not each.rests(now):
            seconds = policy.fail_back_after.total_seconds()
            message = f"the hub {each.hub.name} is preferred to {held.hub.name}, and has been ready for {seconds:g} s"
            return HubDecision(each.hub.hub_id, ChoiceReason.FAILED_BACK, message)
    return None


_RANKS = {
    HubState.DENIED: _Rank.DENIED,
    HubState.LOST: _Rank.LOST,
    HubState.REVOKED: _Rank.LOST,
    HubState.REGISTERING: _Rank.WITHOUT,
    HubState.UNREACHABLE: _Rank.AWAY,
}


def _rank(candidate: HubCandidate, now: datetime, policy: HubSelectionPolicy) -> _Rank:
    state = candidate.hub.state
    if state in _RANKS:
        return _RANKS[state]
    if candidate.rests(now):
        return _Rank.RESTING
    good = state is HubState.READY or policy.unaccepted is Unaccepted.WAIT
    return _Rank.GOOD if good else _Rank.UNACCEPTED


def _decision(best: HubCandidate, held: HubCandidate | None, owner: HubId | None, now: datetime) -> HubDecision:
    name, state = best.hub.name, best.hub.state.value
    rests = best.rests_until if best.rests(now) else None
    if best is held:
        trouble = f": {best.trouble}" if best.trouble else ""
        return HubDecision(
            best.hub.hub_id, ChoiceReason.KEPT, f"no other hub is ready; the owner {name} is {state}{trouble}", rests
        )
    if owner is None:
        return HubDecision(best.hub.hub_id, ChoiceReason.CHOSEN, f"the hub {name} is the first usable hub: {state}", rests)
    left = f"the hub {owner} is not on the list any more"
    if held is not None:
        trouble = f"lost: {held.trouble}" if held.trouble else held.hub.state.value
        left = f"the hub {held.hub.name} is {trouble}"
    return HubDecision(best.hub.hub_id, ChoiceReason.FAILED_OVER, f"{left}; the hub {name} is {state}", rests)
