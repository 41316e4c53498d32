"""Stores the states of the listed hubs, reported by standby registration and by sessions. Chooses the hub for the session."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import takewhile
from random import Random

import structlog

from machinery.identity import HubId
from machinery.runtime.backoff import Backoff
from machinery.runtime.clock import Clock
from machinery.runtime.scheduler import Scheduler
from spoke.bootstraps.listing import Bootstrap, BootstrapListing
from spoke.credentials.owner import Owner
from spoke.domain.hubs import (
    ChoiceReason,
    HubCandidate,
    HubDecision,
    HubsStatus,
    HubState,
    ListedHub,
    choose,
    is_better,
    refuse_move,
)
from spoke.domain.names import AgentIdentity
from spoke.failover.standby import Standby, StandbyContext
from spoke.observability.progress import AgentProgress
from spoke.options import Hubs

log = structlog.get_logger(__name__)


SHORTEST_TRY = 0.01
"""Seconds. If less of the reconnect timeout is left, the timeout counts as over."""


class ReconnectTimeout:
    """Time for which the agent retries a lost hub before it changes to another hub.

    A random time is drawn at the first loss, and again at a loss after a session that lasted long enough (`Hubs.steady`).
    `is_lost` returns whether another hub was lost before. Then the time is 0 until the agent opens a session with this hub, so
    that the agent waits only for the first lost hub.
    """

    def __init__(self, options: Hubs, is_lost: Callable[[], bool], clock: Clock, random: Random) -> None:
        self._options = options
        self._is_lost = is_lost
        self._clock = clock
        self._random = random
        self._opened_at: float | None = None
        self._lost_at: float | None = None
        self._drawn = 0.0

    @property
    def left(self) -> float | None:
        """The seconds left; 0: the time is over; None: the hub is not lost."""
        if self._lost_at is None:
            return None
        left = self._lost_at + self._drawn - self._clock.monotonic()
        return left if left > SHORTEST_TRY else 0.0

    @property
    def is_over(self) -> bool:
        return self.left == 0.0

    def opened(self) -> None:
        self._opened_at = self._clock.monotonic()

    def moved(self) -> None:
        self._lost_at = None

    def lost(self) -> bool:
        """Record a loss. Return whether the session lasted long enough to reset earlier failures."""
        now, opened = self._clock.monotonic(), self._opened_at
        steady = opened is not None and now - opened >= self._options.steady.total_seconds()
        if self._lost_at is None or steady:
            self._lost_at = now
            share = (1 + 2 * self._random.random()) / 3
            self._drawn = 0.0 if opened is None and self._is_lost() else self._options.timeout.total_seconds() * share
        self._opened_at = None
        return steady


REST_TIMER, FAIL_BACK_TIMER = "hub-rest", "hub-fail-back"
ANSWERED_REST = timedelta(seconds=10)
"""Longest rest of a hub that has answered StandBy since its failure. The hub works, although it refused a session."""
WORKED_SECONDS = 2.0
"""If the session with a hub lasted this long (in seconds), its answer to StandBy limits its rest to the shortest rest."""
ROUNDING_MARGIN = timedelta(milliseconds=1)
"""Added to wake-up times, because a rounded time could be before the end of a rest."""


@dataclass(slots=True)
class _Memory:
    backoff: Backoff
    failed_at: float = 0.0
    """Monotonic time, like `until`, so that changes of the wall clock do not extend the rest."""
    until: float = 0.0
    answered_until: float = 0.0
    """End of the rest if the hub has answered StandBy after the failure."""
    trouble: str = ""


@dataclass(eq=False)
class HubList:
    """The agent's hub list. The agent writes it; the choice of a hub, the session and `spoke status` read it."""

    options: Hubs
    standby: Standby
    progress: AgentProgress
    _: KW_ONLY
    clock: Clock
    scheduler: Scheduler
    random: Random
    wake_up: Callable[[], None]

    def __post_init__(self) -> None:
        self._listing = BootstrapListing()
        self._owner = Owner()
        self._busy: HubId | None = None
        self._met: dict[HubId, tuple[HubState, datetime | None]] = {}
        self._memories: dict[HubId, _Memory] = {}
        self._ready_since: dict[HubId, float] = {}
        self._lost_since: float | None = None
        self._opened_at: float | None = None
        """Time at which the session with the owner was opened, until its first failure."""
        self._decision: HubDecision | None = None
        self._decided_at: datetime | None = None

    @property
    def several(self) -> bool:
        return len(self._listing.hubs) + (self._unread is not None) > 1

    @property
    def _unread(self) -> HubId | None:
        """The owner, if it is missing in a list with unreadable sources, because one of them may be the owner's."""
        owner = self._owner.hub_id
        return owner if owner and not self._listing.whole and self._listing.get(owner) is None else None

    @property
    def reported_epoch(self) -> int:
        return self.standby.epoch

    @property
    def is_lost(self) -> bool:
        return self._lost_since is not None

    def update(self, listing: BootstrapListing, owner: Owner) -> None:
        self._listing, self._owner = listing, owner
        self._show()

    def attend(self, listing: BootstrapListing, owner: Owner, busy: HubId, agent: AgentIdentity) -> None:
        """Set the list, the owner and `busy`, the hub that the agent itself works with. Notify standby registration."""
        self.update(listing, owner)
        self._busy = busy
        self.standby.attend(StandbyContext(listing, agent, busy, owner.hub_id, owner.epoch))

    def record_state(self, hub: HubId, state: HubState, ends_at: datetime | None = None) -> None:
        before = self._met.get(hub)
        self._met[hub] = state, ends_at or (before[1] if before else None)
        if self._met[hub] != before:
            self._show()
            if self.several:  # a single hub gives no choice, so the rest after a failure is not interrupted
                self.wake_up()

    def met(self, hub: HubId) -> bool:
        return hub in self._met or hub in self.standby.hubs

    def fail(self, hub: HubId, why: str) -> None:
        """Begin a rest of the hub: no attempt before its end. The rest grows with each failure until `reset_failures`."""
        memory = self._memories.setdefault(hub, _Memory(self.options.rest.backoff(self.random)))
        rest = memory.backoff.next()
        now, opened_at = self.clock.monotonic(), self._opened_at
        worked = hub == self._owner.hub_id and opened_at is not None and now - opened_at >= WORKED_SECONDS
        answered_rest = min(rest, self.options.rest.first if worked else ANSWERED_REST)
        self._opened_at = None
        memory.failed_at, memory.until, memory.trouble = now, now + rest.total_seconds(), why
        memory.answered_until = now + answered_rest.total_seconds()
        begin = self.clock.now() + ROUNDING_MARGIN
        self.scheduler.at(begin + rest, self.wake_up, name=REST_TIMER)
        if answered_rest < rest:
            self.scheduler.at(begin + answered_rest, partial(self._wake_if_rested, hub), name=f"{REST_TIMER}-{hub}")
        if hub == self._owner.hub_id and self._lost_since is None:
            self._lost_since = self.clock.monotonic()
        self._show()

    def be_open(self) -> None:
        self._lost_since = None
        self._opened_at = self.clock.monotonic()

    def reset_failures(self, hub: HubId) -> None:
        if self._memories.pop(hub, None) is not None:
            self._show()

    def candidates(self) -> tuple[HubCandidate, ...]:
        self._shorten_rests()
        found = tuple(self._candidate(hub) for hub in self._listing.hubs)
        ready = {each.hub.hub_id for each in found if each.ready_since is not None}
        self._ready_since = {hub: self._ready_since.get(hub, self.clock.monotonic()) for hub in ready}
        return found

    def listed(self) -> tuple[ListedHub, ...]:
        return tuple(each.hub for each in self.candidates())

    def decide(self) -> HubDecision | None:
        """Choose the hub for the session; None if the list is empty. An owner with an unreadable source stays until lost."""
        if self._unread is not None and not self.is_lost:
            return HubDecision(self._unread, ChoiceReason.KEPT, "it is the owner; its bootstrap kubeconfig cannot be read")
        candidates, now = self.candidates(), self.clock.now()
        self._wake_for_the_way_back(candidates, now)
        lost_since = self._when(self._lost_since, now)
        return choose(candidates, self._owner.hub_id, now, self.options.policy, lost_since=lost_since)

    def is_better(self) -> bool:
        """Whether a hub other than the owner is good (`spoke.domain.hubs`)."""
        return is_better(self.candidates(), self._owner.hub_id, self.clock.now(), self.options.policy)

    def refuse_move(self, target: HubId) -> str:
        return refuse_move(self.candidates(), target, self.clock.now())

    def name_of(self, hub: HubId) -> str:
        found = self._listing.get(hub)
        return found.name if found is not None else hub

    def take(self, decision: HubDecision) -> bool:
        """Store a decision. Return whether it differs from the last decision; the caller then announces it."""
        last = self._decision
        same = last is not None and last.hub_id == decision.hub_id and decision.why in (last.why, ChoiceReason.KEPT)
        if not same:
            self._decision, self._decided_at = decision, self.clock.now()
            log.info("hub.decision", hub=self.name_of(decision.hub_id), why=decision.why.value, because=decision.message)
        self._show()
        return not same

    def _candidate(self, bootstrap: Bootstrap) -> HubCandidate:
        hub_id, now = bootstrap.hub_id, self.clock.now()
        kept = self.standby.hubs.get(hub_id)
        if kept is not None and hub_id != self._busy:
            hub = replace(kept, name=bootstrap.name, url=bootstrap.connection.hub.server)
        else:
            state, ends_at = self._met.get(hub_id, (HubState.REGISTERING, None))
            hub = ListedHub(hub_id, bootstrap.name, bootstrap.connection.hub.server, state, ends_at)
        memory = self._memories.get(hub_id)
        since = self._when(self._ready_since.get(hub_id), now) or now if hub.state is HubState.READY else None
        return HubCandidate(hub, self._when(memory.until if memory else None, now), memory.trouble if memory else "", since)

    def _wake_if_rested(self, hub: HubId) -> None:
        self._shorten_rests()
        memory = self._memories.get(hub)
        if memory is not None and memory.until <= self.clock.monotonic():
            self.wake_up()

    def _shorten_rests(self) -> None:
        """Limit the rest of hubs that have answered StandBy since their failure. The limit stays if the hub becomes owner."""
        for hub, memory in self._memories.items():
            answered = self.standby.answered_at(hub)
            if answered is not None and answered > memory.failed_at:
                memory.until = min(memory.until, memory.answered_until)

    def _when(self, moment: float | None, now: datetime) -> datetime | None:
        return now + timedelta(seconds=moment - self.clock.monotonic()) if moment is not None else None

    def _wake_for_the_way_back(self, candidates: tuple[HubCandidate, ...], now: datetime) -> None:
        after = self.options.policy.fail_back_after
        if after is None:
            return
        preferred = takewhile(lambda each: each.hub.hub_id != self._owner.hub_id, candidates)
        # Rests use the monotonic clock, the scheduler the wall clock: after a suspend of the machine, the scheduler is early.
        ready = [max(each.ready_since + after, each.rests_until or now) for each in preferred if each.ready_since is not None]
        due = min((instant for instant in ready if instant > now), default=None)
        if due is not None:
            self.scheduler.at(due + ROUNDING_MARGIN, self.wake_up, name=FAIL_BACK_TIMER)

    def _show(self) -> None:
        found = self.candidates()
        hubs = tuple(each.hub for each in found)
        self.progress.hubs_status = HubsStatus(
            self._owner.hub_id, self._owner.epoch, hubs, self._decision, self._decided_at, found
        )
