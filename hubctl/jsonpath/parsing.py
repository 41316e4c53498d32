"""Parses JSONPath templates. Errors state the cause, and have the exit code for wrong usage."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from hubctl.errors import CommandError, UsageError
from hubctl.jsonpath import evaluation

SKIPPED = " @$"
WORD = re.compile(r"(?:\\.?|[^\\ \t\r\n.,\[\]$@{}])*", re.DOTALL)
"""Matches the text before the next terminator that has no backslash before it."""
KEYWORD = re.compile(r"(range|end)(?=[ \t\r\n.,\[\]$@{}])")
ENTRY = re.compile(r"(-?\d*)(:-?\d*)?(:-?\d*)?")
KEY = re.compile(r"'([^']*)'")
COMPARISON = re.compile(r"([^!<>=]+)([!<>=]+)(.+)", re.DOTALL)
NUMBER = re.compile(r"[+-]?[\d.]+|[+-]")
RELAXED = re.compile(r"\{\.?([^{}]+)\}|\.?([^{}]+)")
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
NOT_CLOSED = "an expression is not closed: a } is missing"


def parse_template(text: str) -> evaluation.Template:
    """Parse a template with expressions in braces. Raises CommandError."""
    if "{" not in text:
        raise _wrong(text, f"it has no expression in braces: write '{{{text if text.startswith('.') else f'.{text}'}}}'")
    return _block(_Scan(text), inside=False)


def parse_path(text: str) -> evaluation.Path:
    """Parse one expression. Braces and the first dot are optional: `metadata.name`, `{.metadata.name}`. Raises CommandError."""
    found = RELAXED.fullmatch(text)
    if found is None:
        raise UsageError(f'"{text}" is not a path: write it as .metadata.name or {{.metadata.name}}')
    inner = found[1] or found[2]
    return parse_action(inner if inner.startswith("[") else f".{inner}")


def parse_action(text: str) -> evaluation.Path:
    """Parse the text between braces. Raises CommandError."""
    scan = _Scan(text + "}")
    path = tuple(scan.steps())
    if scan.at < len(scan.text):
        raise _wrong(text, "there is an unexpected brace")
    return path


def _block(scan: "_Scan", *, inside: bool) -> evaluation.Template:
    """Parse the parts up to the end of the text; `inside`: up to the `{end}` of a range."""
    parts: list[evaluation.Path | evaluation.Range] = []
    while scan.at < len(scan.text):
        if text := scan.until("{"):
            parts.append((evaluation.literal(text),))
        if not scan.here:
            break
        scan.at += 1
        while scan.here == " ":
            scan.at += 1
        keyword = scan.take(KEYWORD)
        path = tuple(scan.steps())
        if keyword == "end":
            if not inside:
                raise _wrong(scan.text, "there is an {end} without a {range}")
            return tuple(parts)
        parts.append(evaluation.Range(path, _block(scan, inside=True)) if keyword else path)
    if inside:
        raise _wrong(scan.text, "a {range} has no {end}")
    return tuple(parts)


@dataclass(slots=True)
class _Scan:
    text: str
    at: int = 0

    @property
    def here(self) -> str:
        """The next character; empty: the end."""
        return self.text[self.at : self.at + 1]

    def until(self, character: str) -> str:
        """Return the text before `character`, or the rest of the text, and advance behind it."""
        end = self.text.find(character, self.at)
        begin, self.at = self.at, len(self.text) if end < 0 else end
        return self.text[begin : self.at]

    def take(self, pattern: re.Pattern[str]) -> str:
        """Return the text that matches here, and advance behind it; empty if nothing matches."""
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found[0] if found else ""

    def steps(self) -> Iterator[evaluation.Step]:
        """Yield the steps of an expression. Advance behind its closing brace."""
        descended = False
        while self.here != "}":
            if not self.here or self.here in "\r\n":
                raise _wrong(self.text, NOT_CLOSED)
            if self.here in SKIPPED:
                self.at += 1
                continue
            before, descended = descended, False
            if self.text.startswith("..", self.at):
                if before:
                    raise _wrong(self.text, "there are more than three dots in a row")
                self.at += 2
                yield evaluation.recursive_descent
                descended = self.here != "_" and not self.here.isalnum()
                if not descended:
                    yield _field(self.take(WORD))
            elif self.here == ".":
                self.at += 1
                yield _field(self.take(WORD))
            else:
                yield self._other_step()
        self.at += 1

    def _other_step(self) -> evaluation.Step:
        if self.text.startswith("[?(", self.at):
            return self._filter()
        if self.here == "[":
            self.at += 1
            inside = self.until("]")
            if not self.here or "\n" in inside:
                raise _wrong(self.text, "a [ is not closed")
            self.at += 1
            return _entries(inside, self.text)
        if self.here in "\"'":
            return evaluation.literal(self._quoted())
        if self.here in "+-" or self.here.isdecimal():
            number = self.take(NUMBER)
            try:
                return evaluation.literal(float(number) if "." in number else int(number))
            except ValueError:
                raise _wrong(self.text, f'"{number}" is not a number') from None
        word = self.take(WORD)
        if word in ("true", "false"):
            return evaluation.literal(word == "true")
        raise _wrong(self.text, f'"{word or self.here}" is unexpected: a field begins with a dot')

    def _quoted(self) -> str:
        quote, text = self.here, ""
        self.at += 1
        while self.here != quote:
            if not self.here or self.here == "\n":
                raise _wrong(self.text, f"a {quote} is not closed")
            found, self.at = self.here, self.at + 1
            if found == "\\":
                escaped, self.at = self.here, self.at + 1
                if escaped not in ESCAPES:
                    raise _wrong(self.text, f'"\\{escaped}" is not an escape sequence')
                found = ESCAPES[escaped]
            text += found
        self.at += 1
        return text

    def _filter(self) -> evaluation.Step:
        self.at += len("[?(")
        begin, quote = self.at, ""
        while quote or self.here != ")":
            if not self.here or self.here == "\n":
                raise _wrong(self.text, "a filter is not closed: a ) is missing")
            if self.here in "\"'" and self.text[self.at - 1] != "\\":
                quote = ("" if quote == self.here else quote) if quote else self.here
            self.at += 1
        inside = self.text[begin : self.at]
        if self.text[self.at + 1 : self.at + 2] != "]":
            raise _wrong(self.text, "a filter is not closed: a ] is missing")
        self.at += len(")]")
        found = COMPARISON.fullmatch(inside)
        if found is None:
            return evaluation.filter_of(parse_action(inside))
        if found[2] not in evaluation.COMPARE:
            raise _wrong(self.text, f'"{found[2]}" is not an operator: there are {", ".join(sorted(evaluation.COMPARE))}')
        return evaluation.filter_of(parse_action(found[1]), found[2], parse_action(found[3]))


def _field(word: str) -> evaluation.Step:
    return evaluation.wildcard if word == "*" else evaluation.field(word.replace("\\", ""))


def _entries(inside: str, text: str) -> evaluation.Step:
    """Parse `inside`, the text between two brackets of `text`."""
    if inside == "*":
        return evaluation.slice_of()
    if "," in inside:
        return evaluation.union(tuple(parse_action(f"[{part.strip(' ')}]") for part in inside.split(",")))
    if key := KEY.fullmatch(inside):
        name = key[1].replace("\\", "")
        return evaluation.key_path(name, parse_action(f".{key[1]}")) if "." in name else evaluation.field(name)
    found = ENTRY.fullmatch(inside)
    if found is None:
        raise _wrong(text, f"[{inside}] is neither an index, nor a slice, nor a key in single quotes")
    start, stop, step = (int(part.lstrip(":")) if part and part != ":" else None for part in found.groups())
    return evaluation.slice_of(start, stop, step, single=found[2] is None and start is not None)


def _wrong(text: str, why: str) -> CommandError:
    return UsageError(f"the jsonpath {text!r} cannot be read: {why}")
