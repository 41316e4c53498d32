"""Label and field selectors: Kubernetes' grammar, parsed and matched."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Operator(StrEnum):
    EQUALS = "="
    NOT_EQUALS = "!="
    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    NOT_EXISTS = "!"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term. NOT_EQUALS and NOT_IN also match objects that lack the key, as in Kubernetes."""

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
    """All requirements must hold; none selects everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        return all(requirement.matches(labels) for requirement in self.requirements)


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """All requirements must hold; only EQUALS and NOT_EQUALS occur. A field that an object lacks is the empty string."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        return all(
            (fields.get(requirement.name, "") in requirement.values) == (requirement.operator is Operator.EQUALS)
            for requirement in self.requirements
        )
