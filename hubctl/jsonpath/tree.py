"""The syntax tree of a template."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LiteralStep:
    """Text, a number or a truth value, independent of the input."""

    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class FieldStep:
    """The value of a key. `.name`."""

    name: str


@dataclass(frozen=True, slots=True)
class KeyStep:
    """The value of a key that may contain dots; without such a key, the value at the path that it reads as. `['a.b']`."""

    name: str
    path: "Path"


@dataclass(frozen=True, slots=True)
class Wildcard:
    """All values. `.*`."""


@dataclass(frozen=True, slots=True)
class Descent:
    """The value and all maps and lists within it, each before its contents. `..`."""


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
    """The results of several paths, one after the other. `['a','b']`."""

    paths: tuple["Path", ...]


@dataclass(frozen=True, slots=True)
class Filter:
    """The entries of a list that match. `[?(@.a == "b")]`; without an operator: those that have the value."""

    left: "Path"
    operator: str = ""
    right: "Path" = ()


Step = LiteralStep | FieldStep | KeyStep | Wildcard | Descent | Slice | Union | Filter
Path = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """The part between `{range PATH}` and `{end}`, repeated for each value found."""

    path: Path
    body: "Template"


Template = tuple[Path | Range, ...]
