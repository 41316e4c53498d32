"""The kinds of objects that hubctl knows: their words and their paths on the HTTPS door."""

from dataclasses import dataclass
from urllib.parse import quote

from machinery.product import GROUP_SUFFIX

CLUSTER_LABEL = "open-cluster-management.io/cluster-name"


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of object as hubctl shows it. `wide`: all columns by default."""

    words: tuple[str, ...]
    """Accepted words; the first is the plural in lists."""
    group_version: str
    plural: str
    kind: str
    noun: str
    wide: bool = False
    namespaced: bool = False
    watchable: bool = True

    @property
    def group(self) -> str:
        """The API group; empty for the core group."""
        return self.group_version.rpartition("/")[0]

    @property
    def path(self) -> str:
        return f"{self._root}/{self.plural}"

    @property
    def singular(self) -> str:
        """Kind and group as in `-o name`: `managedcluster.cluster.open-cluster-management.io`."""
        return f"{self.kind.lower()}.{self.group}" if self.group else self.kind.lower()

    def called(self, name: str) -> str:
        """An object's name as in `-o name`."""
        return f"{self.singular}/{name}"

    @property
    def _root(self) -> str:
        return f"/apis/{self.group_version}" if self.group else f"/api/{self.group_version}"

    def of(self, name: str, namespace: str = "") -> str:
        """The path of one object."""
        if not self.namespaced:
            return f"{self.path}/{quote(name, safe='')}"
        return f"{self.within(namespace)}/{quote(name, safe='')}"

    def within(self, namespace: str) -> str:
        """The path of all objects in a namespace, or with an empty one in all namespaces."""
        if not namespace or not self.namespaced:
            return self.path
        return f"{self._root}/namespaces/{quote(namespace, safe='')}/{self.plural}"


CLUSTERS = ResourceKind(
    ("clusters", "cluster", "managedclusters", "managedcluster", "mcl", "mcls"),
    f"cluster.{GROUP_SUFFIX}/v1",
    "managedclusters",
    "ManagedCluster",
    "cluster",
    wide=True,
)
REQUESTS = ResourceKind(
    ("csr", "csrs", "certificatesigningrequests", "certificatesigningrequest"),
    "certificates.k8s.io/v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    "certificate request",
)
CREDENTIALS = ResourceKind(
    ("bootstrap-credentials", "bootstrap-credential", "bootstrapcredentials", "bootstrapcredential"),
    f"hub.{GROUP_SUFFIX}/v1alpha1",
    "bootstrapcredentials",
    "BootstrapCredential",
    "bootstrap credential",
    watchable=False,
)
ADDONS = ResourceKind(
    ("addons", "addon", "managedclusteraddons", "managedclusteraddon", "mca"),
    f"addon.{GROUP_SUFFIX}/v1beta1",
    "managedclusteraddons",
    "ManagedClusterAddOn",
    "add-on",
    wide=True,
    namespaced=True,
)
ADDON_DEFINITIONS = ResourceKind(
    ("clustermanagementaddons", "clustermanagementaddon", "cma", "cmas"),
    f"addon.{GROUP_SUFFIX}/v1beta1",
    "clustermanagementaddons",
    "ClusterManagementAddOn",
    "add-on's definition",
)
LEASES = ResourceKind(("leases", "lease"), "coordination.k8s.io/v1", "leases", "Lease", "lease", namespaced=True)
AUDIT = ResourceKind(
    ("auditrecords", "auditrecord"),
    f"hub.{GROUP_SUFFIX}/v1alpha1",
    "auditrecords",
    "AuditRecord",
    "audit record",
    watchable=False,
)
AUTHORITIES = ResourceKind(
    ("cas", "ca", "certificateauthorities", "certificateauthority"),
    f"hub.{GROUP_SUFFIX}/v1alpha1",
    "certificateauthorities",
    "CertificateAuthority",
    "certificate authority",
    watchable=False,
)
REPLICAS = ResourceKind(
    ("replicas", "replica", "hubreplicas", "hubreplica"),
    f"hub.{GROUP_SUFFIX}/v1alpha1",
    "hubreplicas",
    "HubReplica",
    "replica",
    watchable=False,
)
FLEET = ResourceKind(
    ("fleet", "clustersummary", "clustersummaries"),
    f"hub.{GROUP_SUFFIX}/v1alpha1",
    "clustersummaries",
    "ClusterSummary",
    "fleet",
    watchable=False,
)
RULES = ResourceKind(
    ("rules", "rule", "approvalrules", "approvalrule", "aprule", "aprules"),
    f"hub.{GROUP_SUFFIX}/v1alpha1",
    "approvalrules",
    "ApprovalRule",
    "approval rule",
    wide=True,
)
REVOCATIONS = ResourceKind(
    ("revocations", "revocation"),
    f"hub.{GROUP_SUFFIX}/v1alpha1",
    "revocations",
    "Revocation",
    "revocation",
    wide=True,
)
LEADER = ResourceKind(
    ("leader", "leaders", "hubleader", "hubleaders"),
    f"hub.{GROUP_SUFFIX}/v1alpha1",
    "hubleaders",
    "HubLeader",
    "leader",
    watchable=False,
)
DIAGNOSES = ResourceKind(
    ("diagnoses", "diagnosis", "clusterdiagnoses", "clusterdiagnosis"),
    f"hub.{GROUP_SUFFIX}/v1alpha1",
    "clusterdiagnoses",
    "ClusterDiagnosis",
    "diagnosis",
    watchable=False,
)
TRANSITIONS = ResourceKind(
    ("transitions", "transition", "clustertransitions", "clustertransition"),
    f"hub.{GROUP_SUFFIX}/v1alpha1",
    "clustertransitions",
    "ClusterTransition",
    "transition",
    namespaced=True,
    watchable=False,
)
ALL = (
    CLUSTERS,
    REQUESTS,
    CREDENTIALS,
    ADDONS,
    ADDON_DEFINITIONS,
    LEASES,
    AUDIT,
    AUTHORITIES,
    REPLICAS,
    FLEET,
    RULES,
    REVOCATIONS,
    LEADER,
    DIAGNOSES,
    TRANSITIONS,
)


def known_resource(word: str) -> ResourceKind | None:
    """The kind for this word; None if only the hub may know it."""
    return next((resource for resource in ALL if word.lower() in resource.words), None)
