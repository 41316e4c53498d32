"""Metrics for Prometheus: declarations, a registry without global state, and the text format 0.0.4.

Each part counts in plain attributes, a `Distribution` or a `Tally`, so that counting costs only an addition. The composition
root binds each `Metric` to a function that reads the value; only a scrape calls this function. If values need a database query,
a refresh (`Registry.add_refresh`) runs the query before the scrape.

The number of label values is small: they are constants, or bounded by what the program serves. A metric whose number of label
values grows with the fleet is `detailed`, and is exported only if an operator enables this.
"""

import asyncio
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog

from machinery.product import METRIC_PREFIX

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds, in seconds, of the buckets of a histogram of short durations."""
COUNTS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)

log = structlog.get_logger(__name__)


class MetricKind(StrEnum):
    """Prometheus' metric types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """Declaration of a metric, for the scrape and for the reference page."""

    kind: MetricKind
    name: str
    help: str
    labels: tuple[str, ...] = ()
    detailed: bool = False

    @property
    def series(self) -> tuple[str, ...]:
        """Names of the metric's series in queries."""
        if self.kind is MetricKind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def counter(name: str, text: str, *labels: str) -> Metric:
    """Declare a value that only increases. Its name must end in `_total`. The product's prefix is added."""
    return Metric(MetricKind.COUNTER, METRIC_PREFIX + name, text, labels)


def gauge(name: str, text: str, *labels: str, detailed: bool = False) -> Metric:
    """Declare a value that can increase and decrease. The product's prefix is added."""
    return Metric(MetricKind.GAUGE, METRIC_PREFIX + name, text, labels, detailed)


def histogram(name: str, text: str, *labels: str) -> Metric:
    """Declare a distribution of values. The product's prefix is added."""
    return Metric(MetricKind.HISTOGRAM, METRIC_PREFIX + name, text, labels)


class Distribution:
    """Counts of observed values per bucket. One thread may write it; any thread may read it."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float] = SHORT) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def cumulated(self) -> Iterator[tuple[float, int]]:
        """Yield each bound, infinity last, with the number of values up to it."""
        so_far = 0
        for bound, count in zip((*self._bounds, math.inf), tuple(self._counts), strict=True):
            so_far += count
            yield bound, so_far


Tally = Counter[tuple[str, ...]]
"""One counter per combination of label values. The values are in the order of the metric's labels."""

Value = float | Distribution | None
"""The value of a series; None if there is no series."""
Values = Value | Mapping[Any, Value]
"""One value, or one value per combination of label values. The key is a tuple of strings, or a string for a single label."""
Reading = Callable[[], Values]
Refresh = Callable[[], Awaitable[None]]


class Registry:
    """The metrics of one program. The composition root calls `bind` and `add_refresh`; `scrape` returns the text.

    `detailed`: whether metrics with a series per cluster are exported.
    """

    def __init__(self, *, detailed: bool = False) -> None:
        self.detailed = detailed
        self._readings: dict[str, tuple[Metric, Reading]] = {}
        self._refreshes: list[Refresh] = []
        self._failing: set[str] = set()

    def bind(self, metric: Metric, read: Reading) -> None:
        """Call `read` at each scrape. Without `detailed`, ignore a detailed metric. Raises ValueError for a duplicate name."""
        if metric.name in self._readings:
            raise ValueError(f'a metric named "{metric.name}" is there already')
        if self.detailed or not metric.detailed:
            self._readings[metric.name] = (metric, read)

    def add_refresh(self, refresh: Refresh) -> None:
        """Await `refresh` before each scrape, concurrently with other refreshes. It must bound its own time and not raise."""
        self._refreshes.append(refresh)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All bound metrics, sorted by name."""
        return tuple(metric for _, (metric, _) in sorted(self._readings.items()))

    async def scrape(self) -> str:
        """Read all metrics and return their text. Let other tasks run after each `detailed` metric."""
        await asyncio.gather(*(refresh() for refresh in self._refreshes))
        lines: list[str] = []
        for _, (metric, read) in sorted(self._readings.items()):
            lines += self._lines_of(metric, read)
            if metric.detailed:
                await asyncio.sleep(0)
        return "".join(lines)

    def text(self) -> str:
        """Like `scrape`, without refreshes. A metric that cannot be read is omitted, and logged once."""
        return "".join(line for _, (metric, read) in sorted(self._readings.items()) for line in self._lines_of(metric, read))

    def _lines_of(self, metric: Metric, read: Reading) -> Sequence[str]:
        try:
            lines = _lines(metric, read())
        except Exception as error:
            if metric.name not in self._failing:
                self._failing.add(metric.name)
                log.exception("a metric cannot be read", metric=metric.name, error=str(error))
            return ()
        self._failing.discard(metric.name)
        return lines


def _lines(metric: Metric, values: Values) -> Sequence[str]:
    """Return the lines of the metric; none if it has no series. Raises ValueError if the labels do not fit the metric."""
    series: list[str] = []
    for key, value in tuple(values.items()) if isinstance(values, Mapping) else (((), values),):
        given = (key,) if isinstance(key, str) else key
        labels = [f'{name}="{_escaped(text, quoted=True)}"' for name, text in zip(metric.labels, given, strict=True)]
        braced = f"{{{','.join(labels)}}}" if labels else ""
        if isinstance(value, Distribution):
            count = 0
            for bound, count in value.cumulated():
                bucket = ",".join((*labels, f'le="{_number(bound)}"'))
                series.append(f"{metric.name}_bucket{{{bucket}}} {count}\n")
            series += (f"{metric.name}_sum{braced} {_number(value.total)}\n", f"{metric.name}_count{braced} {count}\n")
        elif value is not None:
            series.append(f"{metric.name}{braced} {_number(value)}\n")
    if not series:
        return ()
    return [f"# HELP {metric.name} {_escaped(metric.help)}\n", f"# TYPE {metric.name} {metric.kind}\n", *series]


def _number(value: float) -> str:
    """Format a number in Go's notation, as Prometheus expects."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


def _escaped(text: str, *, quoted: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quoted else escaped
