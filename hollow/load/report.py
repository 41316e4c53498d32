"""Results of a load: counts, latencies, the verdict, and the report. Results of several processes can be merged.

The latency of a beat begins when the beat is due. So it includes the time for which a hub or the generator stalls (no
coordinated omission).
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from hollow.load.settings import LoadSettings

Document = dict[str, Any]

FINEST = 1e-5
GROWTH = math.log(1.02)
"""Logarithm of the ratio between the bounds of a bucket. So a percentile is at most 2 % too high."""
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p999": 0.999}
BUSIEST = 0.9
"""An event loop that uses more than this share of a processor is saturated."""
TOLERATED_LAG = 0.1
"""The generator's lag may always reach this share of the latency `LoadSettings.judged`, even above `Limits.lag`."""
LONGEST_EXAMPLE = 200
"""Example messages of errors are cut to this number of characters."""


class Latencies:
    """A histogram of durations in seconds."""

    __slots__ = ("buckets", "longest")

    def __init__(self, buckets: Mapping[int, int] | None = None, longest: float = 0.0) -> None:
        self.buckets = Counter(buckets or {})
        self.longest = longest

    def observe(self, seconds: float) -> None:
        self.buckets[math.ceil(math.log(seconds / FINEST) / GROWTH) if seconds > FINEST else 0] += 1
        self.longest = max(self.longest, seconds)

    @property
    def count(self) -> int:
        return self.buckets.total()

    def percentile(self, share: float) -> float:
        """Return the duration that `share` of the observations do not exceed; 0 without observations."""
        left = math.ceil(share * self.count)
        for bucket in sorted(self.buckets):
            left -= self.buckets[bucket]
            if left <= 0:
                return min(FINEST * math.exp(bucket * GROWTH), self.longest)
        return 0.0

    def merge(self, other: "Latencies") -> None:
        self.buckets += other.buckets
        self.longest = max(self.longest, other.longest)

    def document(self) -> Document:
        return {"buckets": dict(self.buckets), "longest": self.longest}

    @classmethod
    def read(cls, document: Document) -> "Latencies":
        """Parse the output of `document`. The bucket numbers may be strings, as in JSON."""
        return cls({int(bucket): count for bucket, count in document["buckets"].items()}, document["longest"])

    def summary(self) -> Document:
        """Return the number of observations, and the percentiles and the maximum in seconds."""
        found = {name: round(self.percentile(share), 6) for name, share in PERCENTILES.items()}
        return {"count": self.count, **found, "max": round(self.longest, 6)}


@dataclass(slots=True)
class Measures:
    """Counts, latencies and errors of one process, or of all processes (`merged`), since the measurement began."""

    counts: Counter[str] = field(default_factory=Counter)
    latencies: dict[str, Latencies] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    processor: float = 0.0
    """Processor time in seconds, of the process or of all processes."""
    loop_share: float = 0.0
    """Share of a processor that the busiest event loop has used."""
    resident: int = 0
    """Resident memory in bytes, minus the memory that the same processes need without agents."""

    def observe(self, latency: str, seconds: float) -> None:
        self.latencies.setdefault(latency, Latencies()).observe(seconds)

    def fail(self, kind: str, message: str) -> None:
        """Count an error by its kind. There must be few kinds, so only the message may contain names of clusters."""
        self.errors[kind] += 1
        self.examples.setdefault(kind, message[:LONGEST_EXAMPLE])

    def get(self, latency: str) -> Latencies:
        """Return the latencies with this name; empty if nothing was observed."""
        return self.latencies.get(latency) or Latencies()

    def document(self) -> Document:
        return {
            "counts": dict(self.counts),
            "latencies": {name: each.document() for name, each in self.latencies.items()},
            "errors": dict(self.errors),
            "examples": self.examples,
            "processor": self.processor,
            "loop_share": self.loop_share,
            "resident": self.resident,
        }

    @classmethod
    def merged(cls, documents: Iterable[Document]) -> "Measures":
        """Return the merged measurements of all processes: their sums, but for `loop_share` the maximum."""
        total = cls()
        for each in documents:
            total.counts.update(each["counts"])
            total.errors.update(each["errors"])
            total.examples = {**each["examples"], **total.examples}
            for name, found in each["latencies"].items():
                total.latencies.setdefault(name, Latencies()).merge(Latencies.read(found))
            total.processor += each["processor"]
            total.loop_share = max(total.loop_share, each["loop_share"])
            total.resident += each["resident"]
        return total


class Verdict(IntEnum):
    """The result of a load as the exit code of the program. 1 is an error, 2 means wrong options."""

    PASSED = 0
    FAILED = 3
    """A limit was exceeded, or not all agents were connected in time."""
    GENERATOR_BOUND = 4
    """The generator was too slow, so the run has measured the generator and not the hub."""


def generator_findings(found: Measures, settings: LoadSettings) -> list[str]:
    """Return the reasons why the generator was too slow; empty if it was not."""
    reasons = []
    lag, judged = (found.get(name).percentile(PERCENTILES["p99"]) for name in ("lag", settings.judged))
    allowed = max(settings.limits.lag, judged * TOLERATED_LAG)
    if lag > allowed:
        reasons.append(f"the p99 of its lag is {lag:.3f} s, and {allowed:.3f} s are allowed")
    if found.loop_share > BUSIEST:
        reasons.append(f"an event loop used {found.loop_share:.0%} of a processor, and {BUSIEST:.0%} are allowed")
    return reasons


def limit_findings(found: Measures, settings: LoadSettings) -> list[str]:
    limits, reasons = settings.limits, []
    unconnected = settings.agents - found.counts["ready"]
    if unconnected > 0:
        reasons.append(f"{unconnected} of {settings.agents} agents were not connected within {settings.start_within:g} s")
    lost, errors = found.counts["beats_lost"], found.errors.total()
    if limits.lost_beats is not None and lost > limits.lost_beats:
        reasons.append(f"{lost} beats were lost, and {limits.lost_beats} are allowed")
    p99 = found.get(settings.judged).percentile(PERCENTILES["p99"])
    if limits.p99 is not None and p99 > limits.p99:
        reasons.append(f"the p99 of the latency {settings.judged} is {p99:.3f} s, and {limits.p99:g} s are allowed")
    if limits.errors is not None and errors > limits.errors:
        reasons.append(f"there were {errors} errors, and {limits.errors} are allowed")
    return reasons


def judge(found: Measures, settings: LoadSettings) -> tuple[Verdict, list[str]]:
    """Return the verdict and its reasons. If the generator was too slow, the verdict is GENERATOR_BOUND in any case."""
    if reasons := generator_findings(found, settings):
        return Verdict.GENERATOR_BOUND, reasons
    reasons = limit_findings(found, settings)
    return (Verdict.FAILED if reasons else Verdict.PASSED), reasons


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The verdict, and the machine-readable report (`document`). The durations in the report are in seconds."""

    verdict: Verdict
    document: Document


def write_report(found: Measures, settings: LoadSettings, seconds: float) -> LoadResult:
    verdict, reasons = judge(found, settings)
    document = {
        "verdict": verdict.name.lower().replace("_", "-"),
        "reasons": reasons,
        "settings": settings.document(),
        "seconds": round(seconds, 3),
        "counts": dict(sorted(found.counts.items())),
        "latencies": {name: each.summary() for name, each in sorted(found.latencies.items()) if name != "lag"},
        "errors": {kind: {"count": count, "example": found.examples[kind]} for kind, count in found.errors.most_common()},
        "generator": {
            "lag": found.get("lag").summary(),
            "busiest_loop_share": round(found.loop_share, 3),
            "processor_seconds": round(found.processor, 3),
            "processor_milliseconds_per_agent_minute": round(found.processor / settings.agents / max(seconds, 1e-3) * 6e4, 3),
            "resident_bytes_per_agent": found.resident // settings.agents,
        },
    }
    return LoadResult(verdict, document)


def summary_lines(result: LoadResult) -> Iterable[str]:
    document = result.document
    yield "counts: " + ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in document["counts"].items())
    for name, each in (*document["latencies"].items(), ("generator lag", document["generator"]["lag"])):
        points = "  ".join(f"{point} {each[point] * 1e3:.1f}" for point in (*PERCENTILES, "max"))
        yield f"{name:>14} ms: {points}  of {each['count']}"
    for kind, error in document["errors"].items():
        yield f"error {kind}: {error['count']} times, for example: {error['example']}"
    generator = document["generator"]
    yield (
        f"generator: {generator['resident_bytes_per_agent'] / 1024:.0f} KiB and"
        f" {generator['processor_milliseconds_per_agent_minute']:.2f} ms of processor time per minute for an agent"
    )
    yield "; ".join((f"verdict: {document['verdict']}", *document["reasons"]))
