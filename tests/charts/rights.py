"""Rights that a chart gives, and calls that were made: which of the one is missing for the other, and which is idle."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from machinery.apiserver.access import Attributes, Decision
from machinery.apiserver.authz.rbac import named
from machinery.apiserver.storage import Actor
from machinery.identity import service_account_user


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource, in one namespace ("": in all); without `names` on all objects."""

    verb: str
    group: str
    resource: str
    namespace: str
    names: tuple[str, ...] = ()

    def allows(self, asked: Attributes) -> bool:
        resource = f"{asked.resource}/{asked.subresource}" if asked.subresource else asked.resource
        same = (self.verb, self.group, self.resource) == (asked.verb, asked.group, resource)
        return same and self.namespace in ("", asked.namespace) and (not self.names or named(asked) in self.names)


@dataclass(slots=True)
class Calls:
    """What one account asked, in a hollow cluster that `tell`s it."""

    user: str = ""
    allowed: dict[Attributes, None] = field(default_factory=dict)
    refused: dict[Attributes, None] = field(default_factory=dict)

    def of(self, namespace: str, name: str) -> None:
        self.user = service_account_user(namespace, name)

    def tell(self, actor: Actor, asked: Attributes, decision: Decision) -> None:
        if actor.user == self.user and asked.resource:
            (self.allowed if decision.allowed else self.refused)[asked] = None

    def idle(self, rights: Iterable[Right]) -> list[Right]:
        """Those that no call needed. A call takes the narrowest that allows it: what has a wider one beside it is idle."""
        narrowest_first = sorted(rights, key=lambda right: (right.namespace == "", not right.names))
        used = {next((right for right in narrowest_first if right.allows(asked)), None) for asked in self.allowed}
        return [right for right in rights if right not in used]


def rights_of(documents: Sequence[dict[str, Any]], namespace: str) -> list[Right]:
    """Of the one account of a chart, by way of the bindings to roles that are the chart's own."""
    roles = {(each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each for each in documents}
    found: list[Right] = []
    for binding in documents:
        if binding["kind"] in ("RoleBinding", "ClusterRoleBinding"):
            assert [each["namespace"] for each in binding["subjects"]] == [namespace]
            place = binding["metadata"].get("namespace", "")
            role = roles.get((binding["roleRef"]["kind"], place, binding["roleRef"]["name"]), {})
            for rule in role.get("rules", ()):
                names = tuple(rule.get("resourceNames", ()))
                each_of = product(rule["verbs"], rule["apiGroups"], rule["resources"])
                found += [Right(verb, group, resource, place, names) for verb, group, resource in each_of]
    return found
