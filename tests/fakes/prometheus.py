"""Prometheus in memory: evaluates what our rules and dashboards use of its language over series that a test makes up."""

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import promql_parser as promql

LOOKBACK = 300.0  # seconds after which a sample is no longer the value of its series
NAME = "__name__"

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Samples = Sequence[tuple[float, float]]  # instants in seconds with values, in order

ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else (math.nan if not a or math.isnan(a) else math.copysign(math.inf, a)),
}
COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
FOLDS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "max": max,
    "min": min,
    "count": len,
    "avg": lambda values: math.fsum(values) / len(values),
}


def without_name(labels: Labels) -> Labels:
    return frozenset(pair for pair in labels if pair[0] != NAME)


@dataclass
class Prometheus:
    """Series by their labels, the name among them."""

    series: dict[Labels, Samples] = field(default_factory=dict)

    def add(self, name: str, labels: Mapping[str, str], samples: Samples) -> None:
        self.series[frozenset({**labels, NAME: name}.items())] = samples

    def ask(self, query: str, at: float) -> Vector:
        """The result at an instant; a scalar has no labels."""
        found = self._value(promql.parse(query), at)
        return found if isinstance(found, dict) else {frozenset(): found}

    def firing(self, rule: Mapping[str, Any], at: float, every: float = 60.0) -> list[dict[str, str]]:
        """The labels of the alerts of a rule that fire, without those that the rule adds. The first evaluation is at 0."""
        waits = promql.parse_duration(rule["for"]).total_seconds() if "for" in rule else 0.0
        moments = [at - step * every for step in range(int(waits // every) + 1)]
        if moments[-1] < 0:
            return []
        results = [self.ask(rule["expr"], moment) for moment in moments]
        return [dict(without_name(labels)) for labels in sorted(set(results[0]).intersection(*results[1:]), key=sorted)]

    def _value(self, node: Any, at: float) -> Any:
        match node:
            case promql.NumberLiteral():
                return node.val
            case promql.ParenExpr():
                return self._value(node.expr, at)
            case promql.VectorSelector():
                return self._instant(node, at)
            case promql.AggregateExpr():
                return self._aggregate(node, at)
            case promql.BinaryExpr():
                return self._binary(node, at)
            case promql.Call():
                return self._call(node, at)
        raise NotImplementedError(type(node).__name__)

    def _selected(self, node: Any) -> Iterator[tuple[Labels, Samples]]:
        for labels, samples in self.series.items():
            if (NAME, node.name) not in labels:
                continue
            known = dict(labels)
            if all(_matches(each, known.get(each.name, "")) for each in node.matchers.matchers):
                yield labels, samples

    def _instant(self, node: Any, at: float) -> Vector:
        found: Vector = {}
        for labels, samples in self._selected(node):
            recent = [value for moment, value in samples if at - LOOKBACK < moment <= at]
            if recent:
                found[labels] = recent[-1]
        return found

    def _ranged(self, node: Any, at: float) -> Iterator[tuple[Labels, Samples, float]]:
        seconds = node.range.total_seconds()
        for labels, samples in self._selected(node.vector_selector):
            within = [(moment, value) for moment, value in samples if at - seconds <= moment <= at]
            if len(within) > 1:
                yield without_name(labels), within, seconds

    def _call(self, node: Any, at: float) -> Any:  # noqa: PLR0911 - one per function
        arguments = node.args
        match node.func.name:
            case "time":
                return at
            case "absent":
                return {} if self._value(arguments[0], at) else {frozenset(): 1.0}
            case "rate" | "increase" as name:
                grown = {labels: (_grown(points), seconds) for labels, points, seconds in self._ranged(arguments[0], at)}
                return {key: rise * seconds if name == "increase" else rise for key, (rise, seconds) in grown.items()}
            case "last_over_time":
                return {labels: points[-1][1] for labels, points, _ in self._ranged(arguments[0], at)}
            case "predict_linear":
                ahead = self._value(arguments[1], at)
                return {labels: _predicted(points, at + ahead) for labels, points, _ in self._ranged(arguments[0], at)}
            case "histogram_quantile":
                return _quantile(self._value(arguments[0], at), self._value(arguments[1], at))
            case "clamp_min":
                least = self._value(arguments[1], at)
                return {without_name(key): max(value, least) for key, value in self._value(arguments[0], at).items()}
        raise NotImplementedError(node.func.name)

    def _aggregate(self, node: Any, at: float) -> Vector:
        grouped: dict[Labels, list[float]] = defaultdict(list)
        for labels, value in self._value(node.expr, at).items():
            grouped[_group(node.modifier, without_name(labels))].append(value)
        fold = FOLDS.get(str(node.op))
        if fold is None:
            raise NotImplementedError(str(node.op))
        return {labels: float(fold(values)) for labels, values in grouped.items()}

    def _binary(self, node: Any, at: float) -> Any:
        left, right, sign = self._value(node.lhs, at), self._value(node.rhs, at), str(node.op)
        if sign == "or":
            there = {_match(node.modifier, labels) for labels in left}
            return left | {key: value for key, value in right.items() if _match(node.modifier, key) not in there}
        if sign in ("and", "unless"):
            there = {_match(node.modifier, labels) for labels in right}
            return {key: value for key, value in left.items() if (_match(node.modifier, key) in there) == (sign == "and")}
        if not isinstance(left, dict) and not isinstance(right, dict):
            return ARITHMETIC[sign](left, right)
        return {labels: value for labels, value in _combined(node, left, right, sign) if value is not None}


def _combined(node: Any, left: Any, right: Any, sign: str) -> Iterator[tuple[Labels, float | None]]:
    """Each result with its labels; None: a comparison has left it out."""
    for labels, first, second in _pairs(node, left, right):
        if sign in COMPARISONS:
            kept = first if isinstance(left, dict) else second
            yield labels, kept if COMPARISONS[sign](first, second) else None
        else:
            yield without_name(labels), ARITHMETIC[sign](first, second)


def _pairs(node: Any, left: Any, right: Any) -> Iterator[tuple[Labels, float, float]]:
    if not isinstance(right, dict):
        yield from ((labels, value, right) for labels, value in left.items())
    elif not isinstance(left, dict):
        yield from ((labels, left, value) for labels, value in right.items())
    else:
        others = {_match(node.modifier, labels): value for labels, value in right.items()}
        for labels, value in left.items():
            key = _match(node.modifier, labels)
            if key in others:
                yield labels, value, others[key]


def _match(modifier: Any, labels: Labels) -> Labels:
    """By which labels the two sides of an operator find one another."""
    matching = modifier.matching if modifier is not None else None
    if matching is None:
        return without_name(labels)
    including = matching.type == promql.LabelModifierType.Include
    return frozenset(pair for pair in without_name(labels) if (pair[0] in matching.labels) == including)


def _group(modifier: Any, labels: Labels) -> Labels:
    if modifier is None:
        return frozenset()
    by = modifier.type == promql.AggModifierType.By
    return frozenset(pair for pair in labels if (pair[0] in modifier.labels) == by)


def _matches(matcher: Any, value: str) -> bool:
    match matcher.op:
        case promql.MatchOp.Equal:
            return bool(value == matcher.value)
        case promql.MatchOp.NotEqual:
            return bool(value != matcher.value)
    found = re.fullmatch(matcher.value, value) is not None
    return bool(found == (matcher.op == promql.MatchOp.Re))


def _grown(points: Samples) -> float:
    """Per second. A counter that falls was reset."""
    rises = (after if after < before else after - before for (_, before), (_, after) in pairwise(points))
    return math.fsum(rises) / (points[-1][0] - points[0][0])


def _predicted(points: Samples, moment: float) -> float:
    """By least squares."""
    middle = math.fsum(at for at, _ in points) / len(points)
    mean = math.fsum(value for _, value in points) / len(points)
    spread = math.fsum((at - middle) ** 2 for at, _ in points)
    slope = math.fsum((at - middle) * (value - mean) for at, value in points) / spread
    return mean + slope * (moment - middle)


def _quantile(quantile: float, buckets: Vector) -> Vector:
    grouped: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"].replace("+Inf", "inf"))
        grouped[frozenset(pair for pair in without_name(labels) if pair[0] != "le")].append((bound, count))
    return {labels: _within(quantile, sorted(found)) for labels, found in grouped.items()}


def _within(quantile: float, buckets: Sequence[tuple[float, float]]) -> float:
    total = buckets[-1][1]
    if not total:
        return math.nan
    below, floor = 0.0, 0.0
    for bound, count in buckets:
        if count >= quantile * total:
            return floor if math.isinf(bound) else floor + (bound - floor) * (quantile * total - below) / (count - below)
        below, floor = count, bound
    raise AssertionError


def names_in(query: str) -> set[tuple[str, tuple[str, ...]]]:
    """Every metric that a query asks for, with the labels that it names there by matchers."""
    selectors = [node for node in _nodes(promql.parse(query)) if isinstance(node, promql.VectorSelector)]
    return {(node.name or "", tuple(each.name for each in node.matchers.matchers)) for node in selectors}


def labels_in(query: str) -> set[str]:
    """Every label by which a query groups or matches."""
    found: set[str] = set()
    for node in _nodes(promql.parse(query)):
        modifier = getattr(node, "modifier", None)
        found.update(getattr(modifier, "labels", None) or getattr(getattr(modifier, "matching", None), "labels", None) or ())
    return found


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    parts = [getattr(node, part, None) for part in ("expr", "lhs", "rhs", "vector_selector")]
    for child in (*parts, *(getattr(node, "args", ()) or ())):
        if child is not None:
            yield from _nodes(child)
