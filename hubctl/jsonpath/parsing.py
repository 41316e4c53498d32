"""Parses JSONPath templates into syntax trees. Errors state the cause and have the exit code for wrong usage."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from hubctl.errors import CommandError


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
class RecursiveDescent:
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


Step = LiteralStep | FieldStep | KeyStep | Wildcard | RecursiveDescent | Slice | Union | Filter
Path = tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Range:
    """The part between `{range PATH}` and `{end}`, repeated for each value found."""

    path: Path
    body: "Template"


Template = tuple[Path | Range, ...]


TERMINATORS = frozenset(" \t\r\n.,[]$@{}")
ENTRY = re.compile(r"(-?\d*)(:-?\d*)?(:-?\d*)?")
KEY = re.compile(r"'([^']*)'")
COMPARISON = re.compile(r"([^!<>=]+)([!<>=]+)(.+)", re.DOTALL)
OPERATORS = frozenset(("==", "!=", "<", "<=", ">", ">="))
NUMBER = re.compile(r"[+-]?[\d.]+")
RELAXED = re.compile(r"\{\.?([^{}]+)\}|\.?([^{}]+)")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def parse_template(text: str) -> Template:
    """Parse a template with expressions in braces. Raises CommandError."""
    if "{" not in text:
        raise _wrong(text, f"nothing in it stands in braces: write '{{{text if text.startswith('.') else f'.{text}'}}}'")
    parts, ended = _block(_Template(text, iter(_parts(text))), inside=False)
    assert not ended  # noqa: S101 - outside of a range, `end` is refused
    return parts


def parse_path(text: str) -> Path:
    """Parse one expression, with or without braces and first dot: `metadata.name`, `{.metadata.name}`. Raises CommandError."""
    found = RELAXED.fullmatch(text)
    if found is None:
        raise CommandError(f'"{text}" is no path: write it as .metadata.name or {{.metadata.name}}', code=2)
    inner = found[1] or found[2]
    return parse_action(inner if inner.startswith("[") else f".{inner}")


@dataclass(slots=True)
class _Template:
    text: str
    parts: Iterator[str | Path]


def _parts(text: str) -> Iterator[str | Path]:
    """Yield literal text, the path of an expression, or the word `range` or `end` before its path."""
    scan = _Scan(text)
    while not scan.done():
        literal = scan.until("{")
        if literal:
            yield (LiteralStep(literal),)
        if scan.done():
            return
        scan.skip("{")
        scan.blank()
        for word in ("range", "end"):
            if scan.at_word(word):
                scan.skip(word)
                yield word
        path = tuple(scan.steps())
        scan.skip("}")
        yield path


def _block(template: _Template, *, inside: bool) -> tuple[Template, bool]:
    """The parts up to the matching `end`, and whether there was one."""
    parts: list[Path | Range] = []
    for part in template.parts:
        if part == "range":
            path = next(template.parts)
            body, ended = _block(template, inside=True)
            if not ended:
                raise _wrong(template.text, "a {range} has no {end}")
            assert isinstance(path, tuple)  # noqa: S101 - a path follows either word
            parts.append(Range(path, body))
        elif part == "end":
            next(template.parts)
            if not inside:
                raise _wrong(template.text, "there is an {end} and no range to end")
            return tuple(parts), True
        elif isinstance(part, tuple):
            parts.append(part)
    return tuple(parts), False


def parse_action(text: str) -> Path:
    """Parse the text between two braces. Raises CommandError."""
    scan = _Scan(text + "}")
    path = tuple(scan.steps())
    scan.skip("}")
    if not scan.done():
        raise _wrong(text, "a brace stands where none can be")
    return path


@dataclass(slots=True)
class _Scan:
    """A position in the text."""

    text: str
    at: int = 0
    _descended: bool = field(default=False, init=False)

    def done(self) -> bool:
        return self.at >= len(self.text)

    @property
    def here(self) -> str:
        return self.text[self.at : self.at + 1]

    def skip(self, word: str) -> None:
        if not self.text.startswith(word, self.at):
            raise _wrong(self.text, "an expression is not closed: a } is missing")
        self.at += len(word)

    def blank(self) -> None:
        while self.here == " ":
            self.at += 1

    def until(self, character: str) -> str:
        """Return the text before `character`, or the rest, and advance."""
        end = self.text.find(character, self.at)
        begin, self.at = self.at, len(self.text) if end < 0 else end
        return self.text[begin : self.at]

    def word(self) -> str:
        """Return the text before the next terminator that is not escaped by a backslash, and advance."""
        begin = self.at
        while not self.done() and self.here not in TERMINATORS:
            self.at += 2 if self.here == "\\" else 1
        return self.text[begin : self.at]

    def at_word(self, word: str) -> bool:
        after = self.text[self.at + len(word) : self.at + len(word) + 1]
        return self.text.startswith(word, self.at) and after in TERMINATORS

    def steps(self) -> Iterator[Step]:
        while self.here != "}":
            if self.done() or self.here in "\r\n":
                raise _wrong(self.text, "an expression is not closed: a } is missing")
            if self.here in " @$":
                self.at += 1
            else:
                yield from self._step()

    def _step(self) -> Iterator[Step]:
        descended, self._descended = self._descended, False
        if self.text.startswith("..", self.at):
            if descended:
                raise _wrong(self.text, "more than three dots stand together")
            yield from self._descent()
        elif self.text.startswith("[?(", self.at):
            yield self._filter()
        elif self.here == "[":
            yield _entries(self._inside_brackets(), self.text)
        elif self.here in "\"'":
            yield LiteralStep(self._quoted())
        elif self.here == ".":
            self.at += 1
            yield _field(self.word())
        else:
            yield self._bare()

    def _descent(self) -> Iterator[Step]:
        self.at += 2
        yield RecursiveDescent()
        if self.here == "_" or self.here.isalnum():
            yield _field(self.word())
        else:
            self._descended = True

    def _bare(self) -> Step:
        if self.here in "+-" or self.here.isdecimal():
            return self._number()
        word = self.word()
        if word in ("true", "false"):
            return LiteralStep(word == "true")
        raise _wrong(self.text, f'"{word or self.here}" is no word of it: a field begins with a dot')

    def _number(self) -> Step:
        found = NUMBER.match(self.text, self.at)
        number = found[0] if found else self.here
        self.at += len(number)
        try:
            return LiteralStep(float(number) if "." in number else int(number))
        except ValueError:
            raise _wrong(self.text, f'"{number}" is no number') from None

    def _quoted(self) -> str:
        quote, text = self.here, ""
        self.at += 1
        while self.here != quote:
            if self.done() or self.here == "\n":
                raise _wrong(self.text, f"a {quote} is not closed")
            text += self._character()
        self.at += 1
        return text

    def _character(self) -> str:
        found, self.at = self.here, self.at + 1
        if found != "\\":
            return found
        found, self.at = self.here, self.at + 1
        if found not in ESCAPES:
            raise _wrong(self.text, f'"\\{found}" means nothing')
        return ESCAPES[found]

    def _inside_brackets(self) -> str:
        self.at += 1
        inside = self.until("]")
        if self.done() or "\n" in inside:
            raise _wrong(self.text, "a [ is not closed")
        self.at += 1
        return inside

    def _filter(self) -> Step:
        self.at += len("[?(")
        inside = self._inside_filter()
        if self.here != "]":
            raise _wrong(self.text, "a filter is not closed: a ] is missing")
        self.at += 1
        found = COMPARISON.fullmatch(inside)
        if found is None:
            return Filter(parse_action(inside))
        if found[2] not in OPERATORS:
            raise _wrong(self.text, f'"{found[2]}" compares nothing: there are {", ".join(sorted(OPERATORS))}')
        return Filter(parse_action(found[1]), found[2], parse_action(found[3]))

    def _inside_filter(self) -> str:
        """Return the text before the closing parenthesis that is not in quotes, and advance."""
        begin, quote = self.at, ""
        while quote or self.here != ")":
            if self.done() or self.here == "\n":
                raise _wrong(self.text, "a filter is not closed: a ) is missing")
            if self.here in "\"'" and self.text[self.at - 1] != "\\":
                quote = ("" if quote == self.here else quote) if quote else self.here
            self.at += 1
        self.at += 1
        return self.text[begin : self.at - 1]


def _field(word: str) -> Step:
    return Wildcard() if word == "*" else FieldStep(word.replace("\\", ""))


def _entries(inside: str, whole: str) -> Step:
    """Parse the text between two brackets."""
    if inside == "*":
        return Slice()
    if "," in inside:
        return Union(tuple(parse_action(f"[{part.strip(' ')}]") for part in inside.split(",")))
    if key := KEY.fullmatch(inside):
        name = key[1].replace("\\", "")
        return KeyStep(name, parse_action(f".{key[1]}")) if "." in name else FieldStep(name)
    found = ENTRY.fullmatch(inside)
    if found is None:
        raise _wrong(whole, f"[{inside}] is neither an index, nor a slice, nor a key in single quotes")
    start, stop, step = (int(part.lstrip(":")) if part and part != ":" else None for part in found.groups())
    return Slice(start, stop, step, single=found[2] is None and start is not None)


def _wrong(text: str, why: str) -> CommandError:
    return CommandError(f"the jsonpath {text!r} cannot be read: {why}", code=2)
