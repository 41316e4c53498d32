"""YAML with JSON's data model, bounded in bytes, depth, nodes and scalar length before a document is built.

The document is built from libyaml's events in one pass, for two reasons. libyaml's composer is recursive and crashes on deep
input. PyYAML's constructors read `1:2:3` as a number in base 60, in quadratic time. In this module dates are text, and tags
create no objects.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class YamlBounds:
    """Bounds of a text. `nodes`: mappings, sequences and scalars, including those that aliases repeat. `scalar`: characters."""

    size: int
    nodes: int
    scalar: int
    depth: int = 100
    aliases: bool = False


REQUEST = YamlBounds(size=256 * KIB, nodes=4_000, scalar=128 * KIB)
"""Bounds for a request. Within them, parsing takes at most 20 ms (see `bench/README.md`)."""
FILE = YamlBounds(size=32 * MIB, nodes=2_000_000, scalar=16 * MIB, aliases=True)
"""Bounds for a file that the user of the process has chosen."""

_TAG_DIRECTIVES = 16
"""Largest number of %TAG directives. libyaml compares each directive with all earlier directives."""
_LONGEST_NUMBER = 64
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
    **{f"{sign}.{word}": float(f"{sign}inf") for sign in ("", "+", "-") for word in ("inf", "Inf", "INF")},
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_INTEGER = re.compile(r"([-+]?)(?:0b([01_]+)|0x([0-9a-fA-F_]+)|0([0-7_]+)|(0|[1-9][0-9_]*))")
_FLOAT = re.compile(r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?")
_BASES = (2, 16, 8, 10)
_PREFIX = "tag:yaml.org,2002:"
_TAGS = frozenset(("!", *(f"{_PREFIX}{name}" for name in ("str", "int", "float", "bool", "null", "map", "seq"))))


_NUMBER_IN_GO = re.compile(r"[yYnN]|[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?0[xXbBoO][0-9a-fA-F]+")
"""Text that PyYAML writes without quotes, and that the YAML parser of kubectl reads as a boolean or a number."""


class _Dumper(yaml.CSafeDumper):
    def text_node(self, text: str) -> yaml.ScalarNode:
        style = "'" if _NUMBER_IN_GO.fullmatch(text.replace("_", "")) else None
        return self.represent_scalar(f"{_PREFIX}str", text, style)


_Dumper.add_representer(str, _Dumper.text_node)


def write(document: Any, *, sort_keys: bool = False, explicit_start: bool = False) -> str:
    """Return YAML that parsers in Python and Go read as the same document. `explicit_start`: it begins with a line `---`."""
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=sort_keys, explicit_start=explicit_start, allow_unicode=True)
    return str(text)


class YamlError(ValueError):
    """The text is not YAML, or exceeds a bound. The message contains the line number, but not the text (a possible secret)."""

    def __init__(self, why: str, mark: Any = None) -> None:
        self.why = why
        self.line: int | None = mark.line + 1 if mark is not None else None
        super().__init__(f"line {self.line}: {why}" if self.line is not None else why)


def load(text: str | bytes, bounds: YamlBounds = FILE, twice: list[str] | None = None) -> Any:
    """Load the only document; None if there is none. Raises YamlError, also for a second document.

    `twice`: a list to which a message is added for each duplicate key of a mapping, with the line number.
    """
    documents = load_all(text, bounds, twice, most=1)
    return documents[0] if documents else None


def load_all(
    text: str | bytes, bounds: YamlBounds = FILE, twice: list[str] | None = None, *, most: int | None = None
) -> list[Any]:
    """Load all documents. Raises YamlError, also for more than `most` documents (None: no limit)."""
    builder = _Builder(bounds, twice)
    documents: list[Any] = []
    for event in _events(_readable(text, bounds)):
        if isinstance(event, yaml.DocumentStartEvent):
            if len(documents) == most:
                raise YamlError("it has more than one document", event.start_mark)
            builder.begin()
        elif isinstance(event, yaml.DocumentEndEvent):
            documents.append(builder.root)
        elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            builder.take(event)
    return documents


def _readable(text: str | bytes, bounds: YamlBounds) -> str:
    if len(text) > bounds.size:
        raise YamlError(f"it has more than {bounds.size} bytes")
    try:
        readable = text.decode("utf-8-sig") if isinstance(text, bytes) else text
    except UnicodeDecodeError:
        raise YamlError("it is not UTF-8") from None
    if readable.count("%TAG") > _TAG_DIRECTIVES:
        raise YamlError(f"it has more than {_TAG_DIRECTIVES} %TAG directives")
    return readable


def _events(text: str) -> Iterator[Any]:
    try:
        yield from yaml.parse(text, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        raise YamlError(str(error.problem), error.problem_mark) from None
    except yaml.YAMLError:
        raise YamlError("it contains characters that YAML does not allow") from None


@dataclass(slots=True)
class _Open:
    """An unfinished collection. `before`: number of nodes before it; `height`: number of its levels, including itself."""

    value: dict[str, Any] | list[Any]
    anchor: str | None
    before: int
    seen: set[str]
    key: str | None = None
    height: int = 1
    merged: bool = False


class _Builder:
    def __init__(self, bounds: YamlBounds, twice: list[str] | None) -> None:
        self._bounds = bounds
        self._twice = twice
        self._nodes = 0
        self.begin()

    def begin(self) -> None:
        """Start a document. Discard the anchors of the previous one."""
        self.root: Any = None
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int, int]] = {}

    def take(self, event: Any) -> None:
        if isinstance(event, yaml.ScalarEvent):
            self._scalar(event)
        elif isinstance(event, yaml.CollectionEndEvent):
            ended = self._open.pop()
            if ended.anchor:
                self._note(event, ended.value, self._nodes - ended.before, ended.height, ended.anchor)
            self._put(event, ended.value, ended.height)
        elif isinstance(event, yaml.AliasEvent):
            self._alias(event)
        else:
            self._begin(event)

    def _scalar(self, event: Any) -> None:
        self._count(event, 1, 0)
        if len(event.value) > self._bounds.scalar:
            raise YamlError(f"a text has more than {self._bounds.scalar} characters", event.start_mark)
        value = _resolved(event)
        if event.anchor:
            self._note(event, value, 1, 0)
        if not self._wants_key():
            self._put(event, value, 0)
            return
        around = self._open[-1]
        around.key, around.merged = event.value, event.value == "<<" and event.implicit[0]
        if event.value in around.seen and self._twice is not None:
            self._twice.append(f'line {event.start_mark.line + 1}: key "{event.value}" already set in map')
        around.seen.add(event.value)

    def _begin(self, event: Any) -> None:
        self._count(event, 1, 1)
        if event.tag not in (None, *_TAGS):
            raise YamlError("it has a tag that names no type of JSON", event.start_mark)
        if self._wants_key():
            raise YamlError("a key is not a string", event.start_mark)
        value: dict[str, Any] | list[Any] = [] if isinstance(event, yaml.SequenceStartEvent) else {}
        self._open.append(_Open(value, event.anchor, self._nodes - 1, set()))

    def _alias(self, event: Any) -> None:
        if not self._bounds.aliases:
            raise YamlError("YAML aliases are not accepted", event.start_mark)
        if self._wants_key() or event.anchor not in self._anchors:
            raise YamlError("an alias has no anchor before it, or is a key", event.start_mark)
        value, nodes, height = self._anchors[event.anchor]
        self._count(event, nodes, height)
        self._put(event, value, height)

    def _note(self, event: Any, value: Any, nodes: int, height: int, anchor: str | None = None) -> None:
        if not self._bounds.aliases:
            raise YamlError("YAML aliases are not accepted", event.start_mark)
        self._anchors[anchor or event.anchor] = (value, nodes, height)

    def _count(self, event: Any, nodes: int, height: int) -> None:
        self._nodes += nodes
        if self._nodes > self._bounds.nodes:
            raise YamlError(f"it has more than {self._bounds.nodes} values", event.start_mark)
        if len(self._open) + height > self._bounds.depth:
            raise YamlError(f"it is nested deeper than {self._bounds.depth}", event.start_mark)

    def _wants_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1].value, dict) and self._open[-1].key is None

    def _put(self, event: Any, value: Any, height: int) -> None:
        if not self._open:
            self.root = value
            return
        around = self._open[-1]
        around.height = max(around.height, height + 1)
        if isinstance(around.value, list):
            around.value.append(value)
        elif around.merged:
            for each in value if isinstance(value, list) else [value]:  # the first one takes precedence
                if not isinstance(each, dict):
                    raise YamlError("a merge key has no mapping", event.start_mark)
                around.value.update({name: there for name, there in each.items() if name not in around.value})
        else:
            around.value[around.key or ""] = value
        around.key = None


def _resolved(event: Any) -> Any:
    """Return the value of a scalar by YAML 1.1, without numbers in base 60 and without dates."""
    text, tag = event.value, event.tag
    if tag not in (None, *_TAGS):
        raise YamlError("it has a tag that names no type of JSON", event.start_mark)
    if tag in ("!", f"{_PREFIX}str") or (tag is None and not event.implicit[0]) or len(text) > _LONGEST_NUMBER:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if found := _INTEGER.fullmatch(text):
        sign, *digits = found.groups()
        base, number = next((base, each) for base, each in zip(_BASES, digits, strict=True) if each is not None)
        plain = number.replace("_", "")
        return int(f"{sign}{plain}", base) if plain else text
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text
