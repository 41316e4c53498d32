"""What a program counts, for Prometheus: declarations, a registry without global state, and the text format 0.0.4.

A part of a program counts for itself, in plain attributes, a `Distribution` or a `Tally`: that costs what adding a number
costs. Who puts the program together binds each `Metric` to a function that reads the number, which is called when somebody
scrapes and at no other time. What must be asked of a database is asked by a look (`Registry.look`) before the reading.

A label has few values, known when the program is written or bounded by what it serves. A metric whose labels grow with the
fleet is `detailed`, and is told only where an operator has asked for that.
"""

import asyncio
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import structlog

from machinery.product import METRIC_PREFIX

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds in seconds, for what is over in a moment."""
COUNTS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0)
"""Bounds for how many."""

log = structlog.get_logger(__name__)


class MetricKind(StrEnum):
    """What Prometheus calls the type."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """What is told, for the scrape and for the reference page."""

    kind: MetricKind
    name: str
    help: str
    labels: tuple[str, ...] = ()
    detailed: bool = False
    """It has a series for each cluster."""

    @property
    def series(self) -> tuple[str, ...]:
        """The names by which queries find it."""
        if self.kind is MetricKind.HISTOGRAM:
            return tuple(f"{self.name}_{part}" for part in ("bucket", "sum", "count"))
        return (self.name,)


def counter(name: str, text: str, *labels: str) -> Metric:
    """What only grows while the process lives; its name ends in `_total`. The product's prefix is put before the name."""
    return Metric(MetricKind.COUNTER, METRIC_PREFIX + name, text, labels)


def gauge(name: str, text: str, *labels: str, detailed: bool = False) -> Metric:
    """What goes up and down."""
    return Metric(MetricKind.GAUGE, METRIC_PREFIX + name, text, labels, detailed)


def histogram(name: str, text: str, *labels: str) -> Metric:
    """How values are distributed."""
    return Metric(MetricKind.HISTOGRAM, METRIC_PREFIX + name, text, labels)


class Distribution:
    """How observed values are distributed over bounds. Written by one thread, read by any."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float] = SHORT) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self._counts)

    @property
    def total(self) -> float:
        """What was observed, added up."""
        return self._sum

    def cumulated(self) -> Iterator[tuple[float, int]]:
        """Each bound, infinity last, with how many were at most that."""
        so_far = 0
        for bound, count in zip((*self._bounds, math.inf), tuple(self._counts), strict=True):
            so_far += count
            yield bound, so_far


Tally = Counter[tuple[str, ...]]
"""A counter for each combination of values of labels, in the order of the metric's labels."""

Value = float | Distribution | None
"""None: there is nothing to tell now, and no series."""
Values = Value | Mapping[Any, Value]
"""One; or one for each combination of the labels' values, a tuple of texts; for one label the text alone will do."""
Reading = Callable[[], Values]
Look = Callable[[], Awaitable[None]]


class Registry:
    """What one program tells. `bind` metrics and `look`s while it is put together; `scrape` gives the text.

    `detailed`: whether metrics with a series for each cluster are told.
    """

    def __init__(self, *, detailed: bool = False) -> None:
        self.detailed = detailed
        self._readings: dict[str, tuple[Metric, Reading]] = {}
        self._looks: list[Look] = []
        self._failing: set[str] = set()

    def bind(self, metric: Metric, read: Reading) -> None:
        """Has `read` say what the metric is. Raises ValueError for a name that is taken."""
        if metric.name in self._readings:
            raise ValueError(f'a metric named "{metric.name}" is there already')
        if self.detailed or not metric.detailed:
            self._readings[metric.name] = (metric, read)

    def look(self, look: Look) -> None:
        """Awaits `look` before each reading, at the same time as others. It bounds itself and raises nothing."""
        self._looks.append(look)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """All that are bound, by name."""
        return tuple(metric for _, (metric, _) in sorted(self._readings.items()))

    async def scrape(self) -> str:
        """Everything, as text, read now. Others have their turn between metrics that have many series."""
        await asyncio.gather(*(look() for look in self._looks))
        told: list[str] = []
        for _, (metric, read) in sorted(self._readings.items()):
            told += self._told(metric, read)
            if metric.detailed:
                await asyncio.sleep(0)
        return "".join(told)

    def text(self) -> str:
        """The same without a look. What cannot be read is left out, and said once in the log: the rest is worth telling."""
        return "".join(line for _, (metric, read) in sorted(self._readings.items()) for line in self._told(metric, read))

    def _told(self, metric: Metric, read: Reading) -> Sequence[str]:
        try:
            lines = list(_lines(metric, read()))
        except Exception as error:
            if metric.name not in self._failing:
                self._failing.add(metric.name)
                log.exception("a metric cannot be read", metric=metric.name, error=str(error))
            return ()
        self._failing.discard(metric.name)
        return lines


def _lines(metric: Metric, values: Values) -> Iterator[str]:
    """The metric's lines; none where it has no series."""
    series = [line for labels, value in _labelled(metric, values) for line in _series(metric, labels, value)]
    if series:
        yield f"# HELP {metric.name} {_escaped(metric.help)}\n"
        yield f"# TYPE {metric.name} {metric.kind}\n"
        yield from series


def _labelled(metric: Metric, values: Values) -> Iterator[tuple[str, Value]]:
    """Each value with its labels as they are written. Raises ValueError when the labels are not the metric's."""
    of_each = values if isinstance(values, Mapping) else {(): values}
    for key, value in tuple(of_each.items()):
        given = (key,) if isinstance(key, str) else key
        pairs = zip(metric.labels, given, strict=True)
        yield ",".join(f'{name}="{_escaped(text, quoted=True)}"' for name, text in pairs), value


def _series(metric: Metric, labels: str, value: Value) -> Iterable[str]:
    if value is None:
        return
    if not isinstance(value, Distribution):
        yield f"{metric.name}{_braced(labels)} {_number(value)}\n"
        return
    count = 0
    for bound, count in value.cumulated():
        bucket = f'{labels}{"," if labels else ""}le="{_number(bound)}"'
        yield f"{metric.name}_bucket{{{bucket}}} {count}\n"
    yield f"{metric.name}_sum{_braced(labels)} {_number(value.total)}\n"
    yield f"{metric.name}_count{_braced(labels)} {count}\n"


def _braced(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _number(value: float) -> str:
    """As Go reads it: Prometheus does."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


def _escaped(text: str, *, quoted: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quoted else escaped


def described(metrics: Iterable[Metric]) -> str:
    """The metrics as rows of a Markdown table, in their order."""
    rows = (
        f"| `{each.name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} | {_escaped(each.help)} |"
        for each in metrics
    )
    return "\n".join(("| metric | type | labels | |", "|---|---|---|---|", *rows, ""))
