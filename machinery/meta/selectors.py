"""Label and field selectors in Kubernetes' grammar: parsing and matching."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any

from machinery.errors import BadRequestError


class Operator(StrEnum):
    EQUALS = "="
    NOT_EQUALS = "!="
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    NOT_EXISTS = "!"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term with at most MOST_VALUES values. NOT_EQUALS and NOT_IN also match objects without the key, as in Kubernetes."""

    name: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, values: Mapping[str, str]) -> bool:
        present = values.get(self.name)
        match self.operator:
            case Operator.EXISTS:
                return present is not None
            case Operator.NOT_EXISTS:
                return present is None
            case Operator.EQUALS | Operator.IN:
                return present is not None and present in self.values
            case Operator.NOT_EQUALS | Operator.NOT_IN:
                return present is None or present not in self.values


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A conjunction of requirements. An empty one selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)


_TOKEN = re.compile(r"\s*(?:(==|!=|[=!(),<>])|([^\s=!(),<>]+))")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_MAX_PREFIX, _MAX_NAME = 253, 63
MOST_VALUES = 400
"""Most values of a set in a selector, because a watch compares them at each change."""
MOST_TOGETHER = 1_000
MOST_TERMS = 100
"""Most terms of a selector, because databases reject conditions with a thousand terms."""
LONGEST = 64 * 1024
END = ""
_SHOWN = 200
"""Most characters of a selector that an error message contains."""


def valid_label_key(key: str) -> bool:
    """Whether `key` is a qualified name: `name` or `dns.prefix/name`."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > _MAX_PREFIX or not _PREFIX.fullmatch(prefix)):
        return False
    return len(name) <= _MAX_NAME and _NAME.fullmatch(name) is not None


def valid_label_value(value: str) -> bool:
    return value == "" or (len(value) <= _MAX_NAME and _NAME.fullmatch(value) is not None)


def parse_label_selector(text: str) -> LabelSelector:
    """Parse a selector such as `env=prod,tier in (a,b),!legacy,n!=x`. Raises BadRequestError with found and expected token."""
    _check_length(text)
    return LabelSelector(_few_terms(_LabelParser(text).requirements()))


class _LabelParser:
    """Parses a list of tokens by Kubernetes' grammar. `in` and `notin` are not reserved, so keys may have these names."""

    def __init__(self, text: str) -> None:
        self._tokens = [operator or word for operator, word in _TOKEN.findall(text)]
        self._at = 0

    def requirements(self) -> Iterator[Requirement]:
        if self._peek() == END:
            return
        expected = "!, identifier, or 'end of string'"
        while True:
            if self._peek() != "!" and not _is_word(self._peek()):
                raise BadRequestError(f"found '{self._peek()[:_SHOWN]}', expected: {expected}")
            yield self._requirement()
            separator = self._take()
            if separator == END:
                return
            if separator != ",":
                raise BadRequestError(f"found '{separator[:_SHOWN]}', expected: ',' or 'end of string'")
            expected = "identifier after ','"

    def _requirement(self) -> Requirement:
        if self._peek() == "!":
            self._take()
            return Requirement(self._key(), Operator.NOT_EXISTS)
        key = self._key()
        operator = self._peek()
        if operator in (END, ","):
            return Requirement(key, Operator.EXISTS)
        self._take()
        match operator:
            case "=" | "==":
                return Requirement(key, Operator.EQUALS, (self._value(),))
            case "!=":
                return Requirement(key, Operator.NOT_EQUALS, (self._value(),))
            case "in":
                return Requirement(key, Operator.IN, self._values())
            case "notin":
                return Requirement(key, Operator.NOT_IN, self._values())
            case "<" | ">":
                raise BadRequestError(f"unable to parse requirement: operator '{operator}' is not supported by this server")
        raise BadRequestError(
            f"unable to parse requirement: found '{operator[:_SHOWN]}', expected: in, notin, =, ==, !=, gt, lt"
        )

    def _key(self) -> str:
        key = self._take()
        if not _is_word(key):
            raise BadRequestError(f"unable to parse requirement: found '{key[:_SHOWN]}', expected: identifier")
        if not valid_label_key(key):
            raise BadRequestError(f'unable to parse requirement: key: Invalid value: "{key[:_SHOWN]}": not a qualified name')
        return key

    def _value(self) -> str:
        if self._peek() in (END, ","):
            return ""
        value = self._take()
        if not _is_word(value):
            raise BadRequestError(f"unable to parse requirement: found '{value[:_SHOWN]}', expected: identifier")
        return _checked(value)

    def _values(self) -> tuple[str, ...]:
        if self._take() != "(":
            raise BadRequestError("unable to parse requirement: found no '(' after in or notin")
        values = []
        while (found := self._take()) != ")":
            if found == END:
                raise BadRequestError("unable to parse requirement: found end of string, expected: ',' or ')'")
            if found != ",":
                values.append(_checked(found))
        return _few(values or [""])

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else END

    def _take(self) -> str:
        token = self._peek()
        self._at += 1
        return token


_EXPRESSIONS = {"In": Operator.IN, "NotIn": Operator.NOT_IN, "Exists": Operator.EXISTS, "DoesNotExist": Operator.NOT_EXISTS}


def selector_of(document: Mapping[str, Any]) -> LabelSelector:
    """Parse a metav1.LabelSelector. An empty one selects everything. Raises BadRequestError."""
    labels = document.get("matchLabels") or {}
    requirements = [Requirement(_label_key(key), Operator.EQUALS, (_checked(value),)) for key, value in labels.items()]
    for expression in document.get("matchExpressions") or ():
        operator, values = _EXPRESSIONS.get(expression.get("operator")), tuple(expression.get("values") or ())
        if operator is None:
            raise BadRequestError(f'"{expression.get("operator")}" is not a valid label selector operator')
        if bool(values) != (operator in (Operator.IN, Operator.NOT_IN)):
            raise BadRequestError("values must be specified when `operator` is 'In' or 'NotIn', and only then")
        key = _label_key(str(expression.get("key", "")))
        requirements.append(Requirement(key, operator, _few([_checked(value) for value in values])))
    return LabelSelector(_few_terms(requirements))


def _check_length(text: str) -> None:
    if len(text) > LONGEST:
        raise BadRequestError(f"a selector has {LONGEST} characters at most, got {len(text)}")


def _few_terms(terms: Iterable[Requirement]) -> tuple[Requirement, ...]:
    found = tuple(islice(terms, MOST_TERMS + 1))
    if len(found) > MOST_TERMS:
        raise BadRequestError(f"a selector has {MOST_TERMS} terms at most: use sets, `key in (a,b)`, or several requests")
    values = sum(len(term.values) for term in found)
    if values > MOST_TOGETHER:
        raise BadRequestError(f"the sets of a selector have {MOST_TOGETHER} values together at most, got {values}")
    return found


def _few(values: Sequence[str]) -> tuple[str, ...]:
    if len(values) > MOST_VALUES:
        raise BadRequestError(f"a set in a selector has {MOST_VALUES} values at most, got {len(values)}")
    return tuple(values)


def _label_key(key: str) -> str:
    if not valid_label_key(key):
        raise BadRequestError(f'"{key[:_SHOWN]}" is not a label key')
    return key


def _is_word(token: str) -> bool:
    return token not in (END, "==", "!=", "=", "!", "(", ")", ",", "<", ">")


def _checked(value: str) -> str:
    if not valid_label_value(value):
        raise BadRequestError(f'unable to parse requirement: values: Invalid value: "{value[:_SHOWN]}": not a label value')
    return value


def parse_field_selector(text: str) -> tuple[Requirement, ...]:
    r"""Parse a selector such as `metadata.name=a,spec.x!=b`. `\,`, `\=` and `\\` are escapes. Raises BadRequestError."""
    _check_length(text)
    terms = (term for term in re.split(r"(?<!\\),", text) if term)
    return _few_terms(_field_requirement(text, term) for term in terms)


def _field_requirement(text: str, term: str) -> Requirement:
    found = re.search(r"(?<!\\)(!=|==|=)", term)
    if found is None:
        raise BadRequestError(f"invalid selector: '{text[:_SHOWN]}'; can't understand '{term[:_SHOWN]}'")
    operator = Operator.NOT_EQUALS if found[0] == "!=" else Operator.EQUALS
    value = re.sub(r"\\([\\,=])", r"\1", term[found.end() :])
    return Requirement(term[: found.start()].strip(), operator, (value,))
