"""Conditions (`where`), sort orders and groups on stored objects, and the sources of their fields.

All fields come from an object's name, labels, selectable fields, creation time, and tables about its agent. So a database
evaluates a condition without reading documents, and a watch can evaluate it for the state before a change.

Objects without a value come last in both directions; objects with equal values are ordered by key. A page begins after the sort
values of the last object of the previous page. So the cost of a page does not depend on its position.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from machinery.errors import BadRequestError
from machinery.expression import Expression, KubernetesVersion, MapOf, Type, tree
from machinery.expression.types import FieldType, sort_key
from machinery.meta.objects import Key, SortPosition

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
PATTERN_TEXTS = 100_000
"""Largest number of values to which the regular expressions of a query are applied."""
PATTERN_SECONDS = 2.0


class FieldSource(Enum):
    """The part of an object that a field is read from."""

    NAME = "the object's name"
    LABELS = "its labels"
    FIELDS = "its selectable fields"
    MINOR = "the minor version of a selectable field"
    CREATION = "its age"
    BEAT = "the age of its agent's last beat"
    SESSION = "whether its agent's session is open"
    REPLICA = "the replica that has its agent's session"
    DRIVER = "its agent's driver"
    FLAPS = "the number of its losses of availability within a day"
    CERTIFICATE = "how long its agent's newest certificate is valid"


PRESENT = tuple(each for each in FieldSource if each.name in ("BEAT", "SESSION", "REPLICA", "DRIVER", "FLAPS", "CERTIFICATE"))
"""Sources outside of the object; they have no history."""
MOVING = frozenset((*PRESENT, FieldSource.CREATION))
"""Sources that change without a write of the object, so no watch reports the change."""
AgentFacts = Mapping[FieldSource, str | int | None]
"""Values of the sources in PRESENT: texts, or microseconds since 1970 for an instant."""
NO_AGENT: AgentFacts = {FieldSource.SESSION: "false", FieldSource.FLAPS: "0"}


@dataclass(frozen=True, slots=True)
class ValueSource:
    """The source of a field: the value at `key` in the part `of`; for a map, all values whose keys start with `key`."""

    of: FieldSource
    type: FieldType
    key: str = ""
    about: str = field(default="", compare=False)
    """Description of the field, for the reference page."""


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """The parts of an object that conditions can use. `created` has a resolution of one second."""

    name: str
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    created: datetime | None = None
    agent: AgentFacts = field(default_factory=lambda: NO_AGENT)

    def instant(self, of: FieldSource) -> datetime | None:
        """Return the instant of a field: the start of an age, or the end of a certificate; None if the field has no value."""
        if of is FieldSource.CREATION:
            return self.created
        at = self.agent.get(of)
        return EPOCH + at * _MICROSECOND if isinstance(at, int) else None

    def text(self, source: ValueSource) -> str | None:
        """Return the displayed value of a field that is neither an age nor a map; None if it is missing."""
        match source.of:
            case FieldSource.NAME:
                return self.name
            case FieldSource.LABELS:
                return self.labels.get(source.key)
            case FieldSource.FIELDS:
                return self.fields.get(source.key)
            case FieldSource.MINOR:
                version = Type.VERSION.read(self.fields.get(source.key))
                return f"{version.major}.{version.minor}" if isinstance(version, KubernetesVersion) else None
            case _:
                value = self.agent.get(source.of)
                return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on objects of one kind. Ages are computed at `now`. `sources`: the ValueSource of each field, by name."""

    expression: Expression
    now: datetime = field(compare=False)
    sources: Mapping[str, ValueSource] = field(compare=False, repr=False)

    def holds(self, known: QueryRecord) -> bool:
        """Whether the condition is true for an object. A condition whose truth is unknown counts as false."""
        return self.expression.holds({word: self._value(source, known) for word, source in self.sources.items()})

    def patterns(self) -> Sequence[tree.PatternMatch]:
        return tuple(tree.patterns(self.expression.tree))

    def with_tree(self, new: tree.Condition) -> "Where":
        """Return a copy with the condition `new`, and the same `now` and sources."""
        return replace(self, expression=replace(self.expression, tree=new))

    def named(self) -> frozenset[FieldSource]:
        """Return all sources that the condition uses."""
        return frozenset(self.sources[name].of for name in self.expression.names())

    def text(self, operand: tree.Field | tree.MapEntry, known: QueryRecord) -> str | None:
        """Return the text of the field or map entry `operand` of an object; None if it is missing."""
        value = self._value(self.sources[operand.name], known)
        text: str | None = value.get(operand.key) if isinstance(operand, tree.MapEntry) else value
        return text

    def _value(self, source: ValueSource, known: QueryRecord) -> Any:
        if source.type is Type.DURATION:
            instant = known.instant(source.of)
            if instant is None:
                return None
            return instant - self.now if source.of is FieldSource.CERTIFICATE else self.now - instant
        if isinstance(source.type, MapOf):
            values = known.labels if source.of is FieldSource.LABELS else known.fields
            return {key.removeprefix(source.key): value for key, value in values.items() if key.startswith(source.key)}
        text = known.text(source)
        return text == "true" if source.type is Type.BOOLEAN and text is not None else text


class PatternBudget:
    """Bounds the regular expressions of one query: the number of texts, and the time by `clock`, in seconds.

    The store measures the processor time of its thread: a wait, such as on a busy machine, does not count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = clock() + PATTERN_SECONDS
        self._left = PATTERN_TEXTS

    def resolve(self, where: Where, texts: Callable[[tree.Field | tree.MapEntry], Iterable[str]]) -> Where:
        """Return `where` with each regular expression replaced by the matching `texts` of its field. Raises BadRequestError."""
        found = {each: tree.OneOf(each.operand, self._matching(each, texts(each.operand))) for each in where.patterns()}
        return where.with_tree(tree.replaced(where.expression.tree, found))

    def _matching(self, each: tree.PatternMatch, texts: Iterable[str]) -> tuple[str, ...]:
        matching = []
        for text in texts:
            self._left -= 1
            if self._left < 0 or self._clock() > self._end:
                bound = (
                    f"more than {PATTERN_TEXTS} different values"
                    if self._left < 0
                    else f"more than {PATTERN_SECONDS} s of processor time"
                )
                raise BadRequestError(
                    f"where: column {each.column}: the regular expression needs {bound}: select fewer clusters with &&"
                )
            if each.matches(text):
                matching.append(text)
        return tuple(matching)


@dataclass(frozen=True, slots=True)
class FieldReference:
    """One field of an object. `word`: the name of the field; for an entry of a map, with the key."""

    word: str
    source: ValueSource

    @property
    def is_instant(self) -> bool:
        """Whether the field is an age or a remaining time. These are compared by their instants."""
        return self.source.type is Type.DURATION

    def place(self, known: QueryRecord) -> str | int | None:
        """Return the field's value in the form in which values are compared."""
        if self.is_instant:
            since = known.instant(self.source.of)
            return None if since is None else (since - EPOCH) // _MICROSECOND
        return self.rank(known.text(self.source))

    def rank(self, text: str | None) -> str | None:
        """Return the form in which a displayed value is compared. The field is not an instant."""
        kind = self.source.type
        if text is None or not (isinstance(kind, Type) and kind.has_order):
            return text
        value = kind.read(text)
        return None if value is None else sort_key(value)


@dataclass(frozen=True, slots=True)
class By:
    facet: FieldReference
    descending: bool = False

    @property
    def falls(self) -> bool:
        """Whether the compared values descend. For ages this is inverted: a greater age has an earlier instant."""
        is_age = self.facet.is_instant and self.facet.source.of is not FieldSource.CERTIFICATE
        return self.descending != is_age


@dataclass(frozen=True, slots=True)
class SortOrder:
    """A sort order. `keys`: most significant first. `after`: sort values after which a page begins; None: the first page."""

    keys: tuple[By, ...]
    after: SortPosition | None = None

    @property
    def named(self) -> frozenset[FieldSource]:
        return frozenset(by.facet.source.of for by in self.keys)

    def place(self, known: QueryRecord) -> SortPosition:
        return tuple(by.facet.place(known) for by in self.keys)

    def arranged(self, places: Mapping[Key, SortPosition]) -> Sequence[Key]:
        """Return the keys of the objects in `places` in sort order. `places`: the sort values of each object."""
        found = sorted(places)
        for index in reversed(range(len(self.keys))):
            ranks = {key: self._rank(index, place[index]) for key, place in places.items()}
            found.sort(key=ranks.__getitem__, reverse=self.keys[index].falls)
        return found

    def follows(self, key: Key, place: SortPosition, last: Key) -> bool:
        """Return whether the object `key` at the position `place` comes after the object `last` at the position `after`."""
        for index, (mine, other) in enumerate(zip(place, self.after or (), strict=False)):
            if mine != other:
                first, second = self._rank(index, mine), self._rank(index, other)
                return first < second if self.keys[index].falls else first > second
        return key > last

    def _rank(self, index: int, value: str | int | None) -> tuple[bool, int, str]:
        """A comparable form of a value of one sort key; a missing value comes last in both directions."""
        falls = self.keys[index].falls
        if value is None:
            return not falls, 0, ""
        return (falls, value, "") if isinstance(value, int) else (falls, 0, value)
