"""What a template is made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiteralStep:
    """Text, a number or a truth value, whatever it is applied to."""

    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class FieldStep:
    """The value of a key. `.name`."""

    name: str


@dataclass(frozen=True, slots=True)
class KeyStep:
    """The value of a key that may hold dots; where there is none so called, of the path that it reads as. `['a.b']`."""

    name: str
    path: "Path"


@dataclass(frozen=True, slots=True)
class Wildcard:
    """All values. `.*`."""


@dataclass(frozen=True, slots=True)
class Descent:
    """The value and all maps and lists within it, each before what it holds. `..`."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Entries of a list. `[start:stop:step]`, all of them optional."""

    start: int | None = None
    stop: int | None = None
    step: int | None = None
    single: bool = False
    """`[start]` alone."""


@dataclass(frozen=True, slots=True)
class Union:
    """What several paths find, one after the other. `['a','b']`."""

    paths: tuple["Path", ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """The entries of a list that pass. `[?(@.a == "b")]`; without an operator: those that have it."""

    left: "Path"
    operator: str = ""
    right: "Path" = ()


Step = LiteralStep | FieldStep | KeyStep | Wildcard | Descent | Slice | Union | Filter
Path = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """What stands between `{range PATH}` and `{end}`: once for each value found."""

    path: Path
    body: "Template"


Template = tuple[Path | Range, ...]
