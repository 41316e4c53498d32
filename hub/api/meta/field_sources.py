"""A condition on stored objects: what `where` asks, and in which part of an object each of its words is found.

Everything comes from an object's name, labels, selectable fields and creation, and from its newest heartbeat: so a database
answers without reading a document, and a watch knows whether the object fitted before it changed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any

from hub.api.liveness.heartbeat import LastBeat
from machinery.expression import Expression, MapOf, Type
from machinery.expression.types import FieldType


class FieldSource(Enum):
    """What is looked at."""

    NAME = "the object's name"
    LABELS = "its labels"
    FIELDS = "its selectable fields"
    CREATION = "how long ago it was made"
    BEAT = "how long ago its agent was heard"
    SESSION = "whether its agent's session is open"


MOVING = frozenset((FieldSource.CREATION, FieldSource.BEAT, FieldSource.SESSION))
"""What changes without a change of the object, so that no watch tells of it."""


@dataclass(frozen=True, slots=True)
class ValueSource:
    """Where the value of one word is: under `key`, or for a map under all keys that begin so."""

    of: FieldSource
    type: FieldType
    key: str = ""


@dataclass(frozen=True, slots=True)
class QueryRecord:
    """What of an object may be asked about. `created` in whole seconds."""

    name: str
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    created: datetime | None = None
    beat: LastBeat | None = None

    def instant(self, of: FieldSource) -> datetime | None:
        """What an age of this object counts from."""
        if of is FieldSource.CREATION:
            return self.created
        return None if self.beat is None else self.beat.at

    @property
    def has_session(self) -> bool:
        return self.beat is not None and self.beat.session is not None


@dataclass(frozen=True, slots=True)
class Where:
    """A condition on objects of one kind, asked at `now`; `sources` by word."""

    expression: Expression
    now: datetime = field(compare=False)
    sources: Mapping[str, ValueSource] = field(compare=False, repr=False)

    def holds(self, known: QueryRecord) -> bool:
        """Whether it is true of an object; what is unknown is not."""
        return self.expression.holds({word: self._value(source, known) for word, source in self.sources.items()})

    def named(self) -> frozenset[FieldSource]:
        """All that the condition depends on."""
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
