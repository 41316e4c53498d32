"""The state of the agent for `/readyz`, `/livez`, metrics and the log."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from machinery.errors import MusterError
from machinery.observability import logs
from machinery.observability.metrics import Distribution, Tally
from machinery.runtime.clock import Clock
from spoke.domain.hubs import HubsStatus
from spoke.ports.hub import HubLostError

STUCK = timedelta(minutes=5)
"""A `working` block that runs for longer than this is stuck. Calls of `reconcile` normally end much earlier."""

DECISIONS = 20

WAITING_FOR_APPROVAL = "waiting for the certificate signing request to be approved"
WAITING_FOR_ACCEPTANCE = "waiting for the hub to accept this cluster (hubctl accept)"
REPORTING = "reporting to the hub"
_SHOWN: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    WAITING_FOR_APPROVAL: (
        "waiting for acceptance",
        "at the hub, accept the cluster and approve its certificate",
        ("hubctl accept {}", "hubctl certificate approve {}"),
    ),
    WAITING_FOR_ACCEPTANCE: ("waiting for acceptance", "at the hub, accept the cluster", ("hubctl accept {}",)),
    REPORTING: ("connected", "at the hub, look at the cluster", ("hubctl describe cluster {}",)),
}
"""For steps that the terminal shows: the state of the agent, what the user does next, and the commands for it."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ProbeResult:
    ok: bool
    text: str


@dataclass(frozen=True, slots=True)
class Role:
    """The role of this process in its agent. `holder`: the holder of the agent's Lease; empty: none is known."""

    state: str = "works"
    holder: str = ""

    @property
    def works(self) -> bool:
        return self.state.startswith("works")


@dataclass(frozen=True, slots=True)
class Decided:
    at: datetime
    reason: str
    message: str


@dataclass(slots=True)
class Counts:
    beats: int = 0
    acknowledgement: Distribution = field(default_factory=Distribution)
    sessions: int = 0
    renewals: int = 0
    troubles: Tally = field(default_factory=Tally)
    decisions: Tally = field(default_factory=Tally)
    steps: Tally = field(default_factory=Tally)


class AgentProgress:
    """State of one agent. The agent and its controllers write it; the probes read it. Liveness does not depend on the hub."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.role: Callable[[], Role] = Role
        self.decisions: deque[Decided] = deque(maxlen=DECISIONS)
        self.counts = Counts()
        self.verdict: Callable[[], bool | None] = lambda: None
        """Returns whether the managed cluster's API server answers; None: unknown."""
        self._hubs_status = HubsStatus()
        self.step = "starting"
        self.on_step: Callable[[AgentProgress], object] = lambda _progress: None
        self.hub = ""
        """Address of the hub that the agent works with."""
        self.cluster = ""
        """Name of the cluster at that hub."""
        self.failure = ""
        """Why the present step fails; empty if nothing has failed."""
        self._path: set[str] = set()
        self._failed_path: frozenset[str] = frozenset()
        self._lease = timedelta(seconds=60)
        self._beat_at: float | None = None
        self._under_way: dict[int, tuple[str, float]] = {}
        self._numbers = 0
        self._sessions = 0
        self._waits: Callable[[], ProbeResult | None] = lambda: None

    @property
    def hubs_status(self) -> HubsStatus:
        """The agent's hubs, and the one that holds its session."""
        return self._hubs_status

    @hubs_status.setter
    def hubs_status(self, status: HubsStatus) -> None:
        made = status.decision
        if made is not None and status.decided_at is not None:
            decided = Decided(status.decided_at, made.why.value, made.message)
            if not self.decisions or self.decisions[-1] != decided:
                self.decisions.append(decided)
                self.counts.decisions[made.why.value,] += 1
        self._hubs_status = status

    @property
    def last_beat(self) -> datetime | None:
        if self._beat_at is None:
            return None
        return self._clock.now() - timedelta(seconds=self._clock.monotonic() - self._beat_at)

    def enter(self, step: str) -> None:
        if step != self.step:
            log.debug("agent.step", step=step)
        self.step = step
        if step not in self._failed_path:
            self.failure = ""  # the agent got further than at the last attempt
        self._path.add(step)
        self.on_step(self)

    def fail(self, failure: str) -> None:
        """Record that the present step failed and will be retried. Probes report the failure until a later step begins."""
        self.failure = failure
        self._failed_path, self._path = frozenset(self._path), set()

    def log_failure(self, error: MusterError, delay: timedelta, following: str) -> timedelta:
        """Record a failure like `fail`, and log it. Return `delay`.

        `following` describes the next attempt, and `delay` is the time until then.
        """
        self.fail(error.message)
        self.counts.troubles[error.loss.name.lower() if isinstance(error, HubLostError) else error.reason,] += 1
        log.warning(
            "agent.trouble", step=self.step, error=error.message, next=following, in_seconds=round(delay.total_seconds(), 1)
        )
        return delay

    def beat(self) -> None:
        self.counts.beats += 1
        self._beat_at = self._clock.monotonic()
        self.failure = ""

    def stop(self) -> None:
        """Record that this process no longer works for its agent. Forget the state of the hubs, which is now obsolete."""
        self._hubs_status, self._beat_at, self.failure = HubsStatus(), None, ""
        self.enter("waiting to work")

    def now(self) -> datetime:
        return self._clock.now()

    def lease(self, duration: timedelta) -> None:
        """Set the lease duration: the time for which an acknowledged beat makes the agent ready."""
        self._lease = duration

    @contextmanager
    def connected(self, *, arbitrated: bool) -> Iterator[None]:
        """Context manager for an open session. `arbitrated`: the hub ends the session when the cluster opens a newer one."""
        self._sessions += arbitrated
        self.counts.sessions += 1
        try:
            yield
        finally:
            self._sessions -= arbitrated

    @property
    def has_session(self) -> bool:
        """Whether an `arbitrated` session (see `connected`) is open."""
        return self._sessions > 0

    def waits(self, answer: Callable[[], ProbeResult | None]) -> None:
        """Set the function that `ready` calls first: `answer` returns the readiness, or None if this process works."""
        self._waits = answer

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """Context manager for work that must end within `STUCK`; otherwise the liveness probe fails."""
        self._numbers += 1
        number = self._numbers
        self._under_way[number] = (what, self._clock.monotonic())
        try:
            yield
        finally:
            del self._under_way[number]

    def ready(self) -> ProbeResult:
        """Return ok if a beat was acknowledged within the lease duration; else not ok, with a text that names the failing step.

        If this process does not work, return the result of the function that `waits` has set.
        """
        if (waiting := self._waits()) is not None:
            return waiting
        now = self._clock.monotonic()
        if self._beat_at is not None and now - self._beat_at <= self._lease.total_seconds():
            return ProbeResult(ok=True, text="ok")
        failure = f": {self.failure}" if self.failure else ""
        since = "no beat was acknowledged yet"
        if self._beat_at is not None:
            lease = self._lease.total_seconds()
            since = f"the last beat was acknowledged {now - self._beat_at:.0f} s ago, the lease lasts {lease:g} s"
        return ProbeResult(ok=False, text=f"not ready: {self.step}{failure} ({since})")

    def live(self) -> ProbeResult:
        """Return ok if no `working` block has run for longer than STUCK. An unreachable hub does not matter."""
        now = self._clock.monotonic()
        stuck = [what for what, since in self._under_way.values() if now - since > STUCK.total_seconds()]
        if stuck:
            return ProbeResult(ok=False, text=f"stuck: {', '.join(sorted(stuck))}")
        return ProbeResult(ok=True, text="ok")


class StateAnnouncer:
    """Prints the hub, the cluster, the agent's state and the next commands on a terminal, whenever one of them changes."""

    def __init__(self) -> None:
        self._shown: tuple[str, ...] = ()

    def update(self, progress: AgentProgress) -> None:
        shown = progress.step, progress.hub, progress.cluster
        if progress.step not in _SHOWN or shown == self._shown:
            return
        self._shown = shown
        state, following, commands = _SHOWN[progress.step]
        rows = {"hub": progress.hub, "cluster": progress.cluster, "state": state, "next": following}
        logs.show("The agent is running.", rows, *(command.format(progress.cluster) for command in commands))
