"""Availability against what must be true of it: 200 agents, random faults, thousands of steps of a second, real services.

Every run is drawn from one seed, which a failure names. `make test` takes few steps, `make soak` 10,000.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random

from hub.api.liveness import BrakeLimits
from hub.api.managedclusters.availability import Damping, TaintDelays
from hub.registry.liveness import brake
from machinery.runtime.clock import ManualClock
from tests.fakes.inline_store import InlineStore
from tests.fakes.silent_fleet import SECOND, Agent, Fleet, Setting
from tests.trials import repeated, trials

STEPS = trials(test=200, soak=3_000)
FRESH, JUMP = 5 * SECOND, 2 * SECOND
UNKNOWN, TRUE, FALSE = "Unknown", "True", "False"


@dataclass
class Span:
    """A replica's marks without a gap."""

    replica: int
    first: datetime
    last: datetime
    step: int  # when the last mark was made, by the steady clock


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
        return ahead or (step - marked <= FRESH / SECOND and abs((now - last) - (step - marked) * SECOND) > JUMP)

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
            earlier = [
                other
                for other in self._telling(span.first)
                if other.replica != span.replica and other.first < span.first and other not in reached
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
    silent: bool = False  # unknown because it fell silent, not because it never spoke
    falls: list[datetime] = field(default_factory=list)
    taint: str = ""


class Model:
    """What must be true of the fleet, worked out from what happened to it and from nothing of the hub.

    Written to be obviously right and not fast. Times are the database's.
    """

    def __init__(self, graces: dict[str, timedelta], began: datetime, delays: TaintDelays, limits: BrakeLimits) -> None:
        self.clusters = {name: Expected(grace, TRUE, began) for name, grace in graces.items()}
        self.heard = Heard()
        self.accepted = began
        self._delays = delays
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
            if now >= max(each for each in (cluster.beat, since, self.accepted) if each is not None) + cluster.grace + SECOND:
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
        damping = self._delays.damping
        falls = sum(fall > now - damping.window for fall in cluster.falls)
        wait = self._delays.delay if cluster.status == UNKNOWN else timedelta()
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


def fault(fleet: Fleet, random: Random) -> list[Agent]:
    """Agents are killed, paused, partitioned: for a moment, for about a grace, for long; sometimes many at once. Who."""
    chance = random.random()
    struck = random.sample(fleet.agents, random.randint(20, 120)) if chance < 0.004 else []
    struck += [agent for agent in fleet.agents if random.random() < 0.002]
    for agent in struck:
        about = 5 * agent.lease
        length = random.choice((1, about - 1, about, about + 1, about + 2, random.randint(1, 8 * about)))
        agent.quiet_until = max(agent.quiet_until, fleet.step + length)
    return struck


@dataclass
class Weather:
    """What befalls the hub: its replicas, its database, its database's clock. One thing at a time, drawn from a seed."""

    random: Random
    until: dict[str, int] = field(default_factory=dict)
    jumped: bool = False

    def change(self, fleet: Fleet, model: Model) -> None:
        """Before a step's work."""
        self._clear_up(fleet)
        self._break(fleet, model)
        self.jumped = self.random.random() < 0.002
        if self.jumped:
            fleet.database.advance(self.random.choice((-100, -10, 10, 100)) * SECOND)
        # what waits, waits by the steady clock: after a jump all is looked at anew, or it would be due at another time
        if fleet.up and (self.jumped or not fleet.is_led or self.random.random() < 0.01):
            fleet.lead(self.random.choice(fleet.up))

    def _clear_up(self, fleet: Fleet) -> None:
        if fleet.away and fleet.step >= self.until["away"]:
            fleet.away = False
        for number in tuple(fleet.paused):
            if fleet.step >= self.until[f"paused {number}"]:
                fleet.paused.discard(number)
        for number, replica in enumerate(fleet.replicas):
            if replica is None and fleet.step >= self.until[f"killed {number}"]:
                fleet.start(number)

    def _break(self, fleet: Fleet, model: Model) -> None:
        random = self.random
        if random.random() < 0.006:
            fleet.away, self.until["away"] = True, fleet.step + random.choice((1, 3, 4, 5, 6, 30))
        if fleet.up and random.random() < 0.006:
            number = random.choice(fleet.up)
            fleet.paused.add(number)
            self.until[f"paused {number}"] = fleet.step + random.choice((1, 3, 4, 5, 6, 40))
        if fleet.up and random.random() < 0.006:
            number = random.choice(fleet.up)
            fleet.kill(number)
            model.heard.restart(number)
            self.until[f"killed {number}"] = fleet.step + random.choice((0, 1, 3, 4, 5, 6, 40))


class Drive:
    """The fleet and its model, step by step."""

    def __init__(self, fleet: Fleet, model: Model, seed: int) -> None:
        self.fleet = fleet
        self.model = model
        self.random = Random(seed + 2_000)
        self.weather = Weather(Random(seed + 3_000))
        self.held: list[dict[str, tuple[Agent, int, bool, bool]]] = [{} for _ in fleet.replicas]
        """By replica what it holds: the newest beat of each agent, when it came by the steady clock, its verdict, its flag."""

    async def step(self) -> None:
        fleet, model = self.fleet, self.model
        fleet.tick()
        replicas = list(fleet.replicas)
        self.weather.change(fleet, model)
        for number, replica in enumerate(fleet.replicas):
            if replica is not replicas[number]:
                self.held[number].clear()
        await self._flush()
        await fleet.follow()
        self._part(fault(fleet, self.random))
        known = {agent.name: fleet.is_silent(agent) for agent in fleet.agents}
        for agent in fleet.send():
            self.held[agent.replica][agent.name] = agent, fleet.step, agent.well, known[agent.name]
        if self.random.random() < 0.3 and not self.weather.jumped:
            await self._judge()
        await self._mark()
        await self._judge()
        await self._report()
        if self.random.random() < 0.003 and not fleet.away:
            await fleet.store.run(brake.release, "test")
            model.release(fleet.now)
        await fleet.taint()
        if fleet.is_up(fleet.leader) and not fleet.away:
            model.follow(fleet.now)

    def _part(self, struck: list[Agent]) -> None:
        """Some of them with a word, which ends their sessions; what the others have sent is held until it can be stored."""
        for agent in struck:
            if self.random.random() < 0.5:
                self.fleet.part(agent)
                self.held[agent.replica].pop(agent.name, None)

    async def _flush(self) -> None:
        fleet = self.fleet
        await fleet.flush()
        if fleet.away:
            return
        for number in fleet.up:
            held, self.held[number] = self.held[number], {}
            for name, (_, step, well, flag) in held.items():
                self.model.beat(name, fleet.now - (fleet.step - step) * SECOND, fleet.now, well=well, known_silent=flag)

    async def _mark(self) -> None:
        fleet = self.fleet
        await fleet.mark()
        if fleet.away:
            return
        for number in fleet.up:
            if self.model.heard.has_jumped(number, fleet.now, fleet.step):
                self.model.jump(fleet.now)
            self.model.heard.mark(number, fleet.now, fleet.step)

    async def _judge(self) -> None:
        await self.fleet.judge()
        if self.fleet.is_up(self.fleet.leader) and not self.fleet.away:
            self.model.judge(self.fleet.now)

    async def _report(self) -> None:
        fleet = self.fleet
        for agent in fleet.agents:
            if self.random.random() < 0.002:
                agent.well = not agent.well
                if not fleet.away and fleet.status(agent.name) != "Unknown":
                    await fleet.report(agent)
                    self.model.change(self.model.clusters[agent.name], "True" if agent.well else "False", fleet.now)
        await fleet.follow()


@repeated(test=1, soak=3)
async def test_a_fleet_is_at_every_step_what_the_model_says(clock: ManualClock, trial: int) -> None:
    damping = Damping(threshold=3, window=timedelta(seconds=200), hold=timedelta(seconds=40))
    delays = TaintDelays(delay=timedelta(seconds=6), damping=damping)
    limits = BrakeLimits(share=0.2, at_least=10, window=timedelta(seconds=60))
    fleet = Fleet(InlineStore(clock), clock, trial, Setting(replicas=3 - trial % 3, delays=delays, limits=limits))
    await fleet.begin()
    model = Model({agent.name: agent.grace for agent in fleet.agents}, fleet.now, delays, limits)
    drive = Drive(fleet, model, trial)
    while fleet.step < STEPS:
        await drive.step()
        trace = f"seed {trial}, step {fleet.step}, at {fleet.now}"
        if fleet.away:
            continue
        assert (await fleet.store.read(brake.now)).holds is (model.held is not None), f"the brake: {trace}"
        shown = {agent.name: (fleet.status(agent.name), fleet.taints(agent.name)) for agent in fleet.agents}
        expected = {name: (each.status, (each.taint,) if each.taint else ()) for name, each in model.clusters.items()}
        wrong = {name: (shown[name], each, model.clusters[name]) for name, each in expected.items() if shown[name] != each}  # type: ignore[index]
        assert not wrong, f"{trace}: {wrong}"
        if fleet.step % 50 == 0:
            await fleet.forget()
