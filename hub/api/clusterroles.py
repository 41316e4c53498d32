"""Default roles and bindings: those of Kubernetes that apply to a hub, and OCM's role for joining clusters.

Sources: Kubernetes' bootstrap policy (names, rules, labels, annotations); OCM's `open-cluster-management:bootstrap`. Rights of
agents and bootstrap credentials are not stored; `hub.access.rights` derives them from the hub's records.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hub.api.meta import document as doc
from machinery.meta.objects import Document
from machinery.meta.selectors import selector_of
from machinery.product import GROUP_SUFFIX

GROUP = "rbac.authorization.k8s.io"
AUTOUPDATE = f"{GROUP}/autoupdate"
BOOTSTRAPPING = {"kubernetes.io/bootstrapping": "rbac-defaults"}
READ = ("get", "list", "watch")
CORE, CSRS, LEASES, EVENTS = "", "certificates.k8s.io", "coordination.k8s.io", "events.k8s.io"
BOOTSTRAP_ACCOUNT = {"kind": "ServiceAccount", "namespace": "open-cluster-management", "name": "agent-registration-bootstrap"}


@dataclass(frozen=True, slots=True)
class ApiGroups:
    """Names of the hub's API groups, which end in the hub's suffix."""

    suffix: str = GROUP_SUFFIX

    @property
    def clusters(self) -> str:
        return f"cluster.{self.suffix}"

    @property
    def addons(self) -> str:
        return f"addon.{self.suffix}"

    @property
    def login(self) -> str:
        return f"login.{self.suffix}"

    @property
    def own(self) -> str:
        return f"hub.{self.suffix}"

    @property
    def register(self) -> str:
        """Group of the virtual resources `managedclusters/accept` and `managedclusters/clientcertificates`."""
        return f"register.{self.suffix}"

    def suffixed(self, group: str) -> str:
        """Return the API group with the hub's suffix instead of the default suffix; other groups are unchanged."""
        name, _, ending = group.partition(".")
        return f"{name}.{self.suffix}" if ending == GROUP_SUFFIX else group


def completed(default: Document, groups: ApiGroups) -> dict[str, Any]:
    """Return a default role or binding as stored: with labels and annotations as in Kubernetes, and with the hub's suffix."""
    kept = doc.with_metadata(default, labels={**BOOTSTRAPPING, **doc.labels(default)}, annotations={AUTOUPDATE: "true"})
    if default["kind"] == "ClusterRole":
        kept["rules"] = [dict(rule) for rule in default.get("rules", ())]
        for rule in kept["rules"]:
            if "apiGroups" in rule:
                rule["apiGroups"] = [groups.suffixed(group) for group in rule["apiGroups"]]
    return {"apiVersion": f"{GROUP}/v1", **kept}


def reconciled(default: Document, stored: Document | None) -> dict[str, Any] | None:
    """Return the stored object with the missing parts of a default; None if nothing changes.

    Nothing is removed. Exception: if the roleRef differs, the default replaces the stored binding; a roleRef is immutable.
    """
    if stored is None:
        return dict(default)
    if doc.annotations(stored).get(AUTOUPDATE) == "false":
        return None
    if default.get("roleRef") != stored.get("roleRef"):
        return dict(default)
    labels = {**doc.labels(stored), **doc.labels(default)}
    new = doc.with_metadata(stored, labels=labels, annotations={**doc.annotations(stored), **doc.annotations(default)})
    if "aggregationRule" in default:
        new["aggregationRule"] = default["aggregationRule"]
    else:
        part = "subjects" if "roleRef" in default else "rules"
        present = list(stored.get(part) or ())
        new[part] = [*present, *(each for each in default[part] if each not in present)]
    return new if new != stored else None


def aggregated(role: Document, others: Iterable[Document]) -> dict[str, Any]:
    """Return the role with the rules of all roles that its aggregation rule selects: no duplicates, ordered by role name."""
    selectors = [selector_of(each) for each in doc.sequence(role, "aggregationRule", "clusterRoleSelectors")]
    chosen = [
        other
        for other in others
        if doc.name(other) != doc.name(role) and any(each.matches(doc.labels(other)) for each in selectors)
    ]
    rules: list[Any] = []
    for other in sorted(chosen, key=doc.name):
        rules.extend(each for each in other.get("rules") or () if each not in rules)
    return {**role, "rules": rules}


def with_aggregation(roles: Mapping[str, Document]) -> dict[str, Document]:
    """Return the roles by name, with aggregation repeated until no rules change."""
    known = dict(roles)
    aggregating = [name for name, role in known.items() if role.get("aggregationRule")]
    for _ in aggregating:
        before = [known[name].get("rules") for name in aggregating]
        for name in aggregating:
            known[name] = aggregated(known[name], known.values())
        if [known[name].get("rules") for name in aggregating] == before:
            break
    return known
