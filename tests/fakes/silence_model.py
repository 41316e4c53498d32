"""What must be true of a fleet, worked out from what happened to it and from nothing of the hub.

Written to be obviously right and not fast: it keeps whole histories and looks through them at every step. Times are the
database's.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from hub.domain.brake import Limits
from hub.domain.taint import Patience

SECOND = timedelta(seconds=1)
FRESH, JUMP = 5 * SECOND, 2 * SECOND
UNKNOWN, TRUE, FALSE = "Unknown", "True", "False"


@dataclass
class Span:
    """A replica's marks without a gap."""

    replica: int
    first: datetime
    last: datetime
    step: int
    """When the last mark was made, by the steady clock."""


class Heard:
    """When some replica could store beats."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self.seen: dict[int, tuple[datetime, int]] = {}
        self._going: dict[int, Span] = {}

    def mark(self, replica: int, now: datetime, step: int) -> None:
        going = self._going.get(replica)
        self.seen[replica] = now, step
        if going is not None and step - going.step <= FRESH / SECOND and -JUMP <= now - going.last <= FRESH:
            going.last, going.step = max(now, going.last), step
        else:
            self._going[replica] = Span(replica, now, now, step)
            self._spans.append(self._going[replica])

    def has_jumped(self, replica: int, now: datetime, step: int) -> bool:
        """Whether this replica can tell: a mark of the future, or its own last mark, soon before, at another distance."""
        ahead = any(span.last - now > JUMP for span in self._newest(None))
        last, marked = self.seen.get(replica, (now, step))
        is_recent = step - marked <= FRESH / SECOND
        return ahead or (is_recent and abs((now - last) - (step - marked) * SECOND) > JUMP)

    def _newest(self, now: datetime | None) -> list[Span]:
        return list({span.replica: span for span in self._spans if now is None or span.first <= now}.values())

    def restart(self, replica: int) -> None:
        """Its next mark begins anew."""
        self._going.pop(replica, None)
        self.seen.pop(replica, None)

    def cut(self) -> None:
        """Nothing before counts: the clock has jumped."""
        self._spans.clear()
        self._going.clear()

    def _telling(self, now: datetime) -> list[Span]:
        """What vouched for that instant: of each replica the newest span that had begun, if its end was not too far back."""
        return [span for span in self._newest(now) if now - span.last <= FRESH]

    def since(self, now: datetime) -> datetime | None:
        """From any span that reaches `now` back through spans of others that it began in."""
        ways = [span for span in self._telling(now) if span.last - now <= JUMP]
        reached, best = list(ways), None
        while ways:
            span = ways.pop()
            if best is None or span.first < best:
                best = span.first
            told = self._telling(span.first)
            earlier = [
                other for other in told if other.replica != span.replica and other.first < span.first and other not in reached
            ]
            reached += earlier
            ways += earlier
        return best


@dataclass
class Expected:
    """One cluster."""

    grace: timedelta
    status: str
    changed: datetime
    beat: datetime | None = None
    silent: bool = False
    """Unknown because it fell silent, not because it never spoke."""
    falls: list[datetime] = field(default_factory=list)
    taint: str = ""


class Model:
    """The fleet; whoever drives it tells it each thing that happened, in its order."""

    def __init__(self, graces: dict[str, timedelta], began: datetime, patience: Patience, limits: Limits) -> None:
        self.clusters = {name: Expected(grace, TRUE, began) for name, grace in graces.items()}
        self.heard = Heard()
        self.accepted = began
        self._patience = patience
        self._limits = limits
        self.held: datetime | None = None
        self._released: datetime | None = None

    def beat(self, name: str, at: datetime, now: datetime, *, well: bool, known_silent: bool) -> None:
        """A beat received `at` is stored."""
        cluster = self.clusters[name]
        if cluster.beat is None or at >= cluster.beat:
            cluster.beat = at
        if known_silent and cluster.status == UNKNOWN and now - at < cluster.grace:
            self.change(cluster, TRUE if well else FALSE, now)

    def change(self, cluster: Expected, status: str, now: datetime) -> None:
        if cluster.status == status:
            return
        if cluster.status == TRUE:
            cluster.falls.append(now)
        cluster.silent = status == UNKNOWN and cluster.beat is not None
        cluster.status, cluster.changed = status, now

    def jump(self, now: datetime) -> None:
        self.heard.cut()
        for cluster in self.clusters.values():
            if cluster.beat is not None and cluster.beat > now:
                cluster.beat = now

    def judge(self, now: datetime) -> None:
        since = self.heard.since(now)
        if since is None:
            return
        for cluster in self.clusters.values():
            last = max(each for each in (cluster.beat, since, self.accepted) if each is not None)
            if now >= last + cluster.grace + SECOND:
                self.change(cluster, UNKNOWN, now)

    def release(self, now: datetime) -> None:
        if self.held is not None:
            self.held, self._released = None, now

    def follow(self, now: datetime) -> None:
        """Taints, and the brake, which is looked at while it holds and when something is to be written."""
        if self.held is not None:
            self._brake(now)
        due = [cluster for cluster in self.clusters.values() if self._is_due(cluster, now)]
        if due:
            self._brake(now)
        for cluster in due:
            if not (self.held is not None and cluster.silent):
                cluster.taint = _taint(cluster.status)

    def _is_due(self, cluster: Expected, now: datetime) -> bool:
        if cluster.taint == _taint(cluster.status):
            return False
        damping = self._patience.damping
        falls = sum(fall > now - damping.window for fall in cluster.falls)
        wait = self._patience.delay if cluster.status == UNKNOWN else timedelta()
        if damping.threshold and falls >= damping.threshold:
            wait = max(wait, damping.hold)
        return now >= cluster.changed + wait

    def _brake(self, now: datetime) -> None:
        start = (self.held or now) - self._limits.window
        if self._released is not None:
            start = max(start, self._released)
        fallen = sum(cluster.silent and cluster.changed > start for cluster in self.clusters.values())
        living = sum(cluster.status != UNKNOWN for cluster in self.clusters.values()) + fallen
        if self.held is None:
            if self._limits.share and fallen >= self._limits.at_least and fallen > self._limits.share * living:
                self.held = now
        elif fallen * 2 < self._limits.at_least or fallen * 2 <= self._limits.share * living:
            self.held = None


def _taint(status: str) -> str:
    return {UNKNOWN: "unreachable", FALSE: "unavailable"}.get(status, "")
