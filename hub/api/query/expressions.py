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
from typing import Any

from hub.api.liveness import LastBeat
from machinery.expression import Expression, MapOf, Type
from machinery.expression.types import FieldType, sort_key
from machinery.meta.objects import Key, SortPosition


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

    def text(self, source: ValueSource) -> str | None:
        """The displayed value of a field that is neither an age nor a map; None if it is missing."""
        match source.of:
            case FieldSource.NAME:
                return self.name
            case FieldSource.LABELS:
                return self.labels.get(source.key)
            case FieldSource.FIELDS:
                return self.fields.get(source.key)
            case FieldSource.SESSION:
                return "true" if self.beat is not None and self.beat.session is not None else "false"
            case _:
                return None


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
        if source.of in (FieldSource.CREATION, FieldSource.BEAT):
            since = known.instant(source.of)
            return None if since is None else self.now - since
        if isinstance(source.type, MapOf):
            values = known.labels if source.of is FieldSource.LABELS else known.fields
            return {key.removeprefix(source.key): value for key, value in values.items() if key.startswith(source.key)}
        text = known.text(source)
        return text == "true" if source.type is Type.BOOLEAN and text is not None else text


EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class FieldReference:
    """One field of an object and its name; for a map, with the key."""

    word: str
    source: ValueSource

    @property
    def is_instant(self) -> bool:
        """Whether it is an age, which is compared by the instant from which it counts."""
        return self.source.type is Type.DURATION

    def place(self, known: QueryRecord) -> str | int | None:
        """The value for comparisons."""
        if self.is_instant:
            since = known.instant(self.source.of)
            return None if since is None else (since - EPOCH) // _MICROSECOND
        text, kind = known.text(self.source), self.source.type
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

    def arranged(self, places: Mapping[Key, SortPosition]) -> Sequence[Key]:
        """All keys in sort order."""
        found = sorted(places)
        for index in reversed(range(len(self.keys))):
            ranks = {key: self._rank(index, place[index]) for key, place in places.items()}
            found.sort(key=ranks.__getitem__, reverse=self.keys[index].falls)
        return found

    def follows(self, key: Key, place: SortPosition, last: Key) -> bool:
        """Whether an object comes after `last`, the object at `after`."""
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
