"""Kinds of objects: kinds that hubctl knows without the hub, and kinds from the hub's discovery. Also reads lists in pages."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import quote

from hubctl.client.http import JSON, ApiClient
from hubctl.errors import CommandError, UsageError, closest
from machinery.product import GROUP_SUFFIX

CLUSTER_LABEL = "open-cluster-management.io/cluster-name"


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of object as hubctl shows it. `wide`: columns of priority 1 are shown by default."""

    words: tuple[str, ...]
    """Words that select the kind, the most common first."""
    group_version: str
    plural: str
    kind: str
    noun: str
    wide: bool = False
    namespaced: bool = False
    watchable: bool = True

    @property
    def group(self) -> str:
        """The API group; empty: the core group."""
        return self.group_version.rpartition("/")[0]

    @property
    def path(self) -> str:
        return f"{self._root}/{self.plural}"

    @property
    def singular(self) -> str:
        """Kind and group as `-o name` prints them: `managedcluster.cluster.open-cluster-management.io`."""
        return f"{self.kind.lower()}.{self.group}" if self.group else self.kind.lower()

    @property
    def _root(self) -> str:
        return f"/apis/{self.group_version}" if self.group else f"/api/{self.group_version}"

    def of(self, name: str, namespace: str = "") -> str:
        return f"{self.within(namespace)}/{quote(name, safe='')}"

    def within(self, namespace: str) -> str:
        """Return the path of all objects in a namespace; empty: in all namespaces."""
        if not namespace or not self.namespaced:
            return self.path
        return f"{self._root}/namespaces/{quote(namespace, safe='')}/{self.plural}"


HUB, ADDON = f"hub.{GROUP_SUFFIX}/v1alpha1", f"addon.{GROUP_SUFFIX}/v1beta1"


def _known(words: str, group_version: str, plural: str, kind: str, noun: str, **flags: bool) -> ResourceKind:
    """Return a kind with hubctl's own words, the most common first, in addition to its plural and singular."""
    return ResourceKind(
        tuple(dict.fromkeys((*words.split(), plural, kind.lower()))), group_version, plural, kind, noun, **flags
    )


CLUSTERS = _known(
    "clusters cluster mcl mcls", f"cluster.{GROUP_SUFFIX}/v1", "managedclusters", "ManagedCluster", "cluster", wide=True
)
REQUESTS = _known(
    "csr csrs", "certificates.k8s.io/v1", "certificatesigningrequests", "CertificateSigningRequest", "certificate request"
)
CREDENTIALS = _known(
    "bootstrap-credentials bootstrap-credential",
    HUB,
    "bootstrapcredentials",
    "BootstrapCredential",
    "bootstrap credential",
    watchable=False,
)
ADDONS = _known("addons addon mca", ADDON, "managedclusteraddons", "ManagedClusterAddOn", "add-on", wide=True, namespaced=True)
ADDON_DEFINITIONS = _known(
    "clustermanagementaddons cma cmas", ADDON, "clustermanagementaddons", "ClusterManagementAddOn", "add-on's definition"
)
LEASES = _known("leases", "coordination.k8s.io/v1", "leases", "Lease", "lease", namespaced=True)
AUDIT = _known("auditrecords", HUB, "auditrecords", "AuditRecord", "audit record", watchable=False)
AUTHORITIES = _known("cas ca", HUB, "certificateauthorities", "CertificateAuthority", "certificate authority", watchable=False)
REPLICAS = _known("replicas replica", HUB, "hubreplicas", "HubReplica", "replica", watchable=False)
SESSIONS = _known("sessions session", HUB, "clustersessions", "ClusterSession", "session")
FLEET = _known("fleet", HUB, "clustersummaries", "ClusterSummary", "fleet", watchable=False)
RULES = _known("rules rule aprule aprules", HUB, "approvalrules", "ApprovalRule", "approval rule", wide=True)
REVOCATIONS = _known("revocations", HUB, "revocations", "Revocation", "revocation", wide=True)
LEADER = _known("leader leaders", HUB, "hubleaders", "HubLeader", "leader", watchable=False)
DIAGNOSES = _known("diagnoses diagnosis", HUB, "clusterdiagnoses", "ClusterDiagnosis", "diagnosis", watchable=False)
TRANSITIONS = _known(
    "transitions transition", HUB, "clustertransitions", "ClusterTransition", "transition", namespaced=True, watchable=False
)
SET_VERSION = f"cluster.{GROUP_SUFFIX}/v1beta2"
SETS = _known("clustersets", SET_VERSION, "managedclustersets", "ManagedClusterSet", "cluster set")
BINDINGS = _known(
    "", SET_VERSION, "managedclustersetbindings", "ManagedClusterSetBinding", "cluster set binding", namespaced=True
)
NAMESPACES = _known("namespaces", "v1", "namespaces", "Namespace", "namespace")
ALL = (
    *(CLUSTERS, REQUESTS, CREDENTIALS, ADDONS, ADDON_DEFINITIONS, LEASES, AUDIT, AUTHORITIES, REPLICAS, FLEET, RULES),
    *(REVOCATIONS, LEADER, SESSIONS, DIAGNOSES, TRANSITIONS),
)
"""Kinds whose names, noun and `wide` hubctl has without discovery. All other kinds come from the hub's discovery."""


def post_action(client: ApiClient, path: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Create an action of the hub's API, such as a ClusterMove, at a subresource. Return its status. Raises CommandError."""
    return client.request("POST", path, {"apiVersion": HUB, "kind": kind, "spec": spec}).get("status") or {}


def known_resource(word: str) -> ResourceKind | None:
    """Return the kind for this word; None if hubctl does not know it, but the hub may."""
    return next((resource for resource in ALL if word.lower() in (*resource.words, resource.singular)), None)


AGGREGATED = ",".join(f"{JSON};g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList" for version in ("v2", "v2beta1"))


@dataclass(frozen=True, slots=True)
class ServedKind:
    """A kind in one version, as listed in discovery."""

    resource: ResourceKind
    verbs: frozenset[str]
    short_names: tuple[str, ...]
    preferred: bool

    def answers_to(self, word: str) -> bool:
        """Whether `word` names this kind, as in `crt`, `certs.example.org`, `certs.v1.example.org`."""
        name, _, rest = word.partition(".")
        group, version = self.resource.group, self.resource.group_version.rpartition("/")[2]
        allowed = ("", group, f"{version}.{group}") if self.preferred else (f"{version}.{group}",)
        return name in self.resource.words and rest in allowed


class Catalogue:
    """The kinds that one hub serves. They are requested once, at the first use."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def named(self, word: str) -> ResourceKind:
        """Return the kind for a word. Raises CommandError with a suggestion."""
        known = known_resource(word)
        if known is not None:
            return replace(known, group_version=self._client.served_version(known.group_version))
        found = next((served.resource for served in self.served if served.answers_to(word.lower())), None)
        if found is None:
            raise UsageError(f'there is no kind "{word}"{self._meant(word)}')
        return found

    def of_kind(self, api_version: str, kind: str) -> ResourceKind:
        """Return the kind that a manifest names. Raises CommandError."""
        served_version = self._client.served_version(api_version)
        for served in self.served:
            if (served.resource.group_version, served.resource.kind) == (served_version, kind):
                return served.resource
        kinds = [served.resource.kind for served in self.served if served.resource.group_version == served_version]
        meant = closest(kind, kinds) or (f": it serves {', '.join(kinds)}" if kinds else "")
        raise CommandError(f"the hub does not serve {kind} in {api_version}{meant}", reason="NotFound")

    @cached_property
    def served(self) -> tuple[ServedKind, ...]:
        """All kinds in the hub's order. For an ambiguous word, the first kind counts."""
        pages = (self._client.get(path, accept=AGGREGATED) for path in ("/api", "/apis"))
        return tuple(served for page in pages for served in _read(page.get("items") or ()))

    def _meant(self, word: str) -> str:
        known = [word for resource in ALL for word in resource.words]
        served = [each.resource.plural for each in self.served if each.preferred]
        return closest(word.lower().partition(".")[0], [*known, *served]) or ": `hubctl api-resources` lists what there is"


def _read(groups: Iterable[Mapping[str, Any]]) -> Iterator[ServedKind]:
    for group in groups:
        name = str((group.get("metadata") or {}).get("name") or "")
        seen: set[str] = set()
        for version in group.get("versions") or ():
            for entry in version.get("resources") or ():
                plural, kind, verbs = entry["resource"], entry["responseKind"]["kind"], frozenset(entry.get("verbs") or ())
                singular, short = entry.get("singularResource") or kind.lower(), tuple(entry.get("shortNames") or ())
                resource = ResourceKind(
                    tuple(dict.fromkeys((plural, singular, kind.lower(), *short))),
                    f"{name}/{version['version']}" if name else version["version"],
                    plural,
                    kind,
                    singular,
                    namespaced=entry.get("scope") == "Namespaced",
                    watchable="watch" in verbs,
                )
                for known in ALL:
                    # Hubs differ in the suffix of a group, but not in its first label and the plural.
                    if (known.plural, known.group.partition(".")[0]) == (plural, name.partition(".")[0]):
                        resource = replace(resource, noun=known.noun, wide=known.wide)
                yield ServedKind(resource, verbs, short, plural not in seen)
                seen.add(plural)


PAGE = 500
PAGING = ("continue", "remainingItemCount")
"""Fields in the metadata of a list that concern the remaining pages."""


def pages(
    client: ApiClient, path: str, query: Mapping[str, str], *, accept: str = JSON, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the pages of the list at `path`, with at most `limit` objects in total; None: no limit. Raises CommandError."""
    left, place = limit, ""
    while True:
        size = PAGE if left is None else min(PAGE, left)
        answer = client.get(path, accept=accept, **query, **{"limit": str(size), "continue": place})
        yield answer
        place = str((answer.get("metadata") or {}).get("continue") or "")
        if left is not None:
            left -= len(answer.get("items") or answer.get("rows") or ())
        if not place or left == 0:
            return


def items(client: ApiClient, path: str, query: Mapping[str, str], *, accept: str = JSON) -> Iterator[dict[str, Any]]:
    """Yield the objects of the list at `path`, which is read in pages. Raises CommandError."""
    for page in pages(client, path, query, accept=accept):
        yield from page.get("items") or ()


def join_pages(answers: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Join pages (at least one) into one answer with the first page's revision. Raises errors of `answers`."""
    found = next(answers)
    for answer in answers:
        for part in ("items", "rows"):
            if answer.get(part):
                found[part] = [*(found.get(part) or ()), *answer[part]]
    metadata = {name: value for name, value in (found.get("metadata") or {}).items() if name not in PAGING}
    return {**found, "metadata": metadata} if "metadata" in found else found
