"""Default roles and bindings: those of Kubernetes that apply to a hub, and OCM's role for joining clusters.

Sources: Kubernetes' bootstrap policy (names, rules, labels, annotations); OCM's `open-cluster-management:bootstrap`. Rights of
agents and bootstrap credentials are not stored; `hub.access.rights` derives them from the hub's records.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hub.api.meta import document as doc
from machinery.meta.objects import Document
from machinery.meta.selectors import selector_of
from machinery.product import GROUP_SUFFIX

GROUP = "rbac.authorization.k8s.io"
API_VERSION = f"{GROUP}/v1"
AUTOUPDATE = f"{GROUP}/autoupdate"
BOOTSTRAPPING = {"kubernetes.io/bootstrapping": "rbac-defaults"}
CORE, CSRS, LEASES, EVENTS = "", "certificates.k8s.io", "coordination.k8s.io", "events.k8s.io"
AUTHENTICATED, UNAUTHENTICATED, MASTERS = "system:authenticated", "system:unauthenticated", "system:masters"
READ, WRITE = ("get", "list", "watch"), ("create", "delete", "deletecollection", "patch", "update")
APPROVER = "system:certificates.k8s.io:kube-apiserver-client-approver"
LOGIN = "system:muster:login"
"""Role for exchanging a token for a certificate. It is bound to unauthenticated users, who have no identity before that."""
MONITORING = "system:monitoring"
"""Role and group for scraping metrics, as in Kubernetes."""
SIGNERS = ("kubernetes.io/kube-apiserver-client", "open-cluster-management.io/grpc")
BOOTSTRAP_ACCOUNT = {"kind": "ServiceAccount", "namespace": "open-cluster-management", "name": "agent-registration-bootstrap"}

Rule = dict[str, Any]


def rule(groups: Iterable[str], resources: Iterable[str], verbs: Iterable[str], *names: str) -> Rule:
    """A PolicyRule for resources."""
    parts = {"verbs": list(verbs), "apiGroups": list(groups), "resources": list(resources)}
    return {**parts, "resourceNames": list(names)} if names else parts


def path_rule(*paths: str) -> Rule:
    """A PolicyRule for reading paths."""
    return {"verbs": ["get"], "nonResourceURLs": list(paths)}


def _aggregate(to: str) -> dict[str, str]:
    return {f"{GROUP}/aggregate-to-{to}": "true"}


def cluster_role(name: str, rules: Sequence[Rule], **labels: str) -> dict[str, Any]:
    return {**_typed("ClusterRole", name, labels), "rules": list(rules)}


def _aggregated(name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    rule = {"clusterRoleSelectors": [{"matchLabels": _aggregate(name)}]}
    return {**_typed("ClusterRole", name, labels), "aggregationRule": rule, "rules": []}


def _binding(name: str, *subjects: Mapping[str, str]) -> dict[str, Any]:
    reference = {"apiGroup": GROUP, "kind": "ClusterRole", "name": name}
    return {**_typed("ClusterRoleBinding", name, {}), "subjects": list(subjects), "roleRef": reference}


def _group(name: str) -> dict[str, str]:
    return {"kind": "Group", "apiGroup": GROUP, "name": name}


def _typed(kind: str, name: str, labels: Mapping[str, str]) -> dict[str, Any]:
    metadata = {"name": name, "labels": {**BOOTSTRAPPING, **labels}, "annotations": {AUTOUPDATE: "true"}}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata}


@dataclass(frozen=True, slots=True)
class ApiGroups:
    """The API groups with the hub's suffix."""

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


_FLEET = ("managedclusters", "managedclustersets")
_DISCOVERY = ("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz")
_MONITORED = ("/healthz", "/healthz/*", "/livez", "/livez/*", "/metrics", "/readyz", "/readyz/*")


def cluster_roles(groups: ApiGroups) -> tuple[dict[str, Any], ...]:
    authentication, authorization = ("authentication.k8s.io",), ("authorization.k8s.io",)
    rules: dict[str, tuple[Rule, ...]] = {
        "cluster-admin": (rule("*", "*", "*"), {"verbs": ["*"], "nonResourceURLs": ["*"]}),
        "system:discovery": (path_rule(*_DISCOVERY, "/version", "/version/"),),
        "system:public-info-viewer": (path_rule("/healthz", "/livez", "/readyz", "/version", "/version/"),),
        MONITORING: (path_rule(*_MONITORED),),
        "system:basic-user": (
            rule(authorization, ("selfsubjectaccessreviews", "selfsubjectrulesreviews"), ("create",)),
            rule(authentication, ("selfsubjectreviews",), ("create",)),
        ),
        "system:auth-delegator": (
            rule(authentication, ("tokenreviews",), ("create",)),
            rule(authorization, ("subjectaccessreviews",), ("create",)),
        ),
        LOGIN: (rule((groups.login,), ("tokencredentialrequests",), ("create", "list")),),
        APPROVER: (rule((CSRS,), ("signers",), ("approve",), *SIGNERS),),
        "open-cluster-management:bootstrap": (
            rule((CORE,), ("configmaps",), ("get",)),
            rule((CSRS,), ("certificatesigningrequests",), ("create", *READ)),
            rule((groups.clusters,), ("managedclusters",), ("create", *READ)),
            rule((groups.clusters,), ("managedclustersets/join",), ("create",)),
        ),
    }
    return (
        *(cluster_role(name, each) for name, each in rules.items()),
        _aggregated("admin", {}),
        _aggregated("edit", _aggregate("admin")),
        _aggregated("view", _aggregate("edit")),
        cluster_role("system:aggregate-to-admin", _admin(groups), **_aggregate("admin")),
        cluster_role("system:aggregate-to-edit", _edit(groups), **_aggregate("edit")),
        cluster_role("system:aggregate-to-view", _view(groups), **_aggregate("view")),
    )


def _namespaced(groups: ApiGroups, verbs: tuple[str, ...]) -> tuple[Rule, ...]:
    return (
        rule((CORE,), ("configmaps", "serviceaccounts"), verbs),
        rule((LEASES,), ("leases",), verbs),
        rule((groups.addons,), ("managedclusteraddons",), verbs),
        rule((groups.clusters,), ("managedclustersetbindings",), verbs),
    )


def _view(groups: ApiGroups) -> tuple[Rule, ...]:
    return (
        *_namespaced(groups, READ),
        rule((CORE,), ("events", "namespaces", "services"), READ),
        rule(("apiextensions.k8s.io",), ("customresourcedefinitions",), READ),
        *(rule((group,), ("*/history",), ("get",)) for group in (groups.addons, groups.clusters, groups.own)),
        rule((EVENTS,), ("events",), READ),
        rule((groups.addons,), ("clustermanagementaddons",), READ),
        rule((groups.clusters,), (*_FLEET, *(f"{each}/status" for each in _FLEET)), READ),
        rule(("multicluster.x-k8s.io",), ("clusterprofiles", "clusterprofiles/status"), READ),
        rule((groups.own,), ("clusterdiagnoses",), ("get",)),
        rule((groups.own,), ("approvalrules", "clustersummaries", "clustertransitions", "hubleaders", "hubreplicas"), READ),
        rule((groups.own,), ("clustersessions",), READ),
        rule((groups.login,), ("jwtauthenticators", "webhookauthenticators"), READ),
        rule((groups.login,), ("tokencredentialrequests",), ("list",)),
        rule((groups.own,), ("certificateauthorities", "credentialissuers", "credentialissuers/status", "revocations"), READ),
    )


def _edit(groups: ApiGroups) -> tuple[Rule, ...]:
    return (
        *_namespaced(groups, WRITE),
        rule((CORE,), ("secrets",), (*READ, *WRITE)),
        rule((CORE, EVENTS), ("events",), ("create", "patch", "update")),
        rule((groups.clusters,), ("managedclusters",), ("patch", "update")),
    )


def _admin(groups: ApiGroups) -> tuple[Rule, ...]:
    return (
        rule((GROUP,), ("rolebindings", "roles"), (*READ, *WRITE)),
        rule((CORE,), ("serviceaccounts/token",), ("create",)),
        rule((groups.clusters,), _FLEET, WRITE),
        rule((groups.clusters,), ("managedclustersets/bind", "managedclustersets/join"), ("create",)),
        rule((groups.clusters,), ("managedclusters/move", "managedclusters/rotate"), ("create",)),
        rule((groups.own,), ("hubreplicas/drain", "revocations"), ("create",)),
        rule((groups.own,), ("certificateauthorities/compromised", "certificateauthorities/proceed"), ("create",)),
        rule((groups.own,), ("certificateauthorities/rotate",), ("create",)),
        rule((groups.register,), ("managedclusters/accept",), ("update",)),
    )


CLUSTER_ROLE_BINDINGS = (
    _binding("cluster-admin", _group(MASTERS)),
    _binding("system:discovery", _group(AUTHENTICATED)),
    _binding("system:basic-user", _group(AUTHENTICATED)),
    _binding("system:public-info-viewer", _group(AUTHENTICATED), _group(UNAUTHENTICATED)),
    _binding(MONITORING, _group(MONITORING)),
    _binding(LOGIN, _group(UNAUTHENTICATED)),
    _binding("open-cluster-management:bootstrap", BOOTSTRAP_ACCOUNT),
)
"""The default ClusterRoleBindings."""


def reconciled(default: Document, stored: Document | None) -> dict[str, Any] | None:
    """The stored object with the missing parts of a default; None if nothing changes. Nothing is removed.

    With another roleRef, which is immutable, the default replaces the stored binding.
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
    """The role with the rules of all roles that its aggregation rule selects: no duplicates, ordered by role name."""
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
    """The roles by name, with aggregation repeated until no rules change."""
    known = dict(roles)
    aggregating = [name for name, role in known.items() if role.get("aggregationRule")]
    for _ in aggregating:
        before = [known[name].get("rules") for name in aggregating]
        for name in aggregating:
            known[name] = aggregated(known[name], known.values())
        if [known[name].get("rules") for name in aggregating] == before:
            break
    return known
