"""Conditions (`where`) on stored objects, and the sources of their fields.

All fields come from an object's name, labels, selectable fields, creation time and newest heartbeat. So a database evaluates a
condition without reading documents, and a watch can evaluate it for the state before a change.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from hub.api.liveness import LastBeat
from machinery.expression import Expression, MapOf, Type
from machinery.expression.types import FieldType


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
