"""Conditions (`where`), sort orders and groups on stored objects, and the sources of their fields.

All fields come from an object's name, labels, selectable fields, creation time and newest heartbeat. So a database evaluates a
condition without reading documents, and a watch can evaluate it for the state before a change.

Objects without a value come last in both directions; equal ones are ordered by key. A page begins after the values of the last
object of the previous page, so that the cost of a page does not depend on its position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Protocol, TypeVar

from hub.api.liveness import LastBeat
from machinery.expression import Expression, MapOf, Type
from machinery.expression.types import FieldType, sort_key
from machinery.meta.objects import SortPosition


class FieldSource(Enum):
    """The part of an object that a field is read from."""

    NAME = "the object's name"
    LABELS = "its labels"
    FIELDS = "its selectable fields"
    CREATION = "how long ago it was made"
    BEAT = "how long ago its agent was heard"
    SESSION = "whether its agent's session is open"


MOVING = frozenset((FieldSource.CREATION, FieldSource.BEAT, FieldSource.SESSION))
"""Sources that change without a write of the object, so that no watch reports the change."""


@dataclass(frozen=True, slots=True)
class ValueSource:
    """The source of one field: the value at `key`, or for a map all values whose keys start with `key`."""

    of: FieldSource
    type: FieldType
    key: str = ""


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """The parts of an object that conditions can use. `created` has a resolution of one second."""

    name: str
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    created: datetime | None = None
    beat: LastBeat | None = None

    def instant(self, of: FieldSource) -> datetime | None:
        """Start of this age of the object."""
        if of is FieldSource.CREATION:
            return self.created
        return None if self.beat is None else self.beat.at

    @property
    def has_session(self) -> bool:
        return self.beat is not None and self.beat.session is not None


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on objects of one kind, evaluated at `now`; `sources` by field name."""

    expression: Expression
    now: datetime = field(compare=False)
    sources: Mapping[str, ValueSource] = field(compare=False, repr=False)

    def holds(self, known: QueryRecord) -> bool:
        """Whether the condition is true of an object; unknown is false."""
        return self.expression.holds({word: self._value(source, known) for word, source in self.sources.items()})

    def named(self) -> frozenset[FieldSource]:
        """All sources that the condition uses."""
        return frozenset(self.sources[name].of for name in self.expression.names())

    def _value(self, source: ValueSource, known: QueryRecord) -> Any:
        match source.of:
            case FieldSource.NAME:
                return known.name
            case FieldSource.CREATION | FieldSource.BEAT:
                since = known.instant(source.of)
                return None if since is None else self.now - since
            case FieldSource.SESSION:
                return known.has_session
            case FieldSource.LABELS | FieldSource.FIELDS:
                return _found(source, known.labels if source.of is FieldSource.LABELS else known.fields)


def _found(source: ValueSource, values: Mapping[str, str]) -> Any:
    if isinstance(source.type, MapOf):
        return {key.removeprefix(source.key): value for key, value in values.items() if key.startswith(source.key)}
    value = values.get(source.key)
    return value == "true" if source.type is Type.BOOLEAN and value is not None else value


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Keyed(Protocol):
    """Something with a namespace and a name."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...


K = TypeVar("K", bound=Keyed)


@dataclass(frozen=True, slots=True)
class FieldReference:
    """One field of an object and its name; for a map, with the key."""

    word: str
    source: ValueSource

    @property
    def is_instant(self) -> bool:
        """Whether it is an age, which is compared by the instant from which it counts."""
        return self.source.type is Type.DURATION

    def text(self, known: QueryRecord) -> str | None:
        """The displayed value, for counting; None if it is missing."""
        match self.source.of:
            case FieldSource.NAME:
                return known.name
            case FieldSource.SESSION:
                return "true" if known.has_session else "false"
            case FieldSource.CREATION | FieldSource.BEAT:
                return None
            case FieldSource.LABELS | FieldSource.FIELDS:
                return (known.labels if self.source.of is FieldSource.LABELS else known.fields).get(self.source.key)

    def place(self, known: QueryRecord) -> str | int | None:
        """The value for comparisons."""
        if self.is_instant:
            since = known.instant(self.source.of)
            return None if since is None else (since - EPOCH) // _MICROSECOND
        text, kind = self.text(known), self.source.type
        if text is None or not (isinstance(kind, Type) and kind.has_order):
            return text
        value = kind.read(text)
        return None if value is None else sort_key(value)


@dataclass(frozen=True, slots=True)
class By:
    """One sort key."""

    facet: FieldReference
    descending: bool = False

    @property
    def falls(self) -> bool:
        """Whether values descend. An age is inverted, since it is compared by its instant."""
        return self.descending != self.facet.is_instant


@dataclass(frozen=True, slots=True)
class SortOrder:
    """The keys, most significant first. `after`: the position after which a page begins."""

    keys: tuple[By, ...]
    after: SortPosition | None = None

    @property
    def named(self) -> frozenset[FieldSource]:
        return frozenset(by.facet.source.of for by in self.keys)

    def place(self, known: QueryRecord) -> SortPosition:
        return tuple(by.facet.place(known) for by in self.keys)

    def arranged(self, places: Mapping[K, SortPosition]) -> Sequence[K]:
        """All keys in sort order."""
        found: Sequence[K] = sorted(places, key=lambda key: (key.namespace, key.name))
        for index in reversed(range(len(self.keys))):
            found = _by(found, {key: place[index] for key, place in places.items()}, falls=self.keys[index].falls)
        return found

    def follows(self, key: Keyed, place: SortPosition, last: Keyed) -> bool:
        """Whether an object comes after `last`, the object at `after`."""
        for by, mine, other in zip(self.keys, place, self.after or (), strict=False):
            if mine != other:
                return _beyond(mine, other, falls=by.falls)
        return (key.namespace, key.name) > (last.namespace, last.name)


def _by(keys: Sequence[K], places: Mapping[K, str | int | None], *, falls: bool) -> list[K]:
    there = sorted((key for key in keys if places[key] is not None), key=lambda key: _comparable(places[key]), reverse=falls)
    return [*there, *(key for key in keys if places[key] is None)]


def _comparable(place: str | int | None) -> tuple[int, str]:
    return (place, "") if isinstance(place, int) else (0, str(place))


def _beyond(mine: str | int | None, other: str | int | None, *, falls: bool) -> bool:
    if mine is None or other is None:
        return mine is None
    first, second = _comparable(mine), _comparable(other)
    return first < second if falls else first > second
