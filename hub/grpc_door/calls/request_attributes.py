"""Describes gRPC calls by the request attributes of the HTTPS door, for audit policies and limits."""

from machinery.apiserver.access import Attributes
from machinery.identity import ClusterName

REGISTRATION, SESSION = "/muster.registration.v1.Registration", "/muster.session.v1.Session"
CERTIFICATES = "certificates.k8s.io"


class Asking:
    """Request attributes for the API groups with one suffix."""

    def __init__(self, group_suffix: str) -> None:
        self._clusters = f"cluster.{group_suffix}"
        self._addons = f"addon.{group_suffix}"

    def hub(self) -> Attributes:
        return Attributes("get", f"{REGISTRATION}/GetHub")

    def cluster(self, name: str) -> Attributes:
        return Attributes("create", f"{REGISTRATION}/EnsureCluster", self._clusters, "v1", "managedclusters", name=name)

    def request(self) -> Attributes:
        return Attributes("create", f"{REGISTRATION}/SubmitRequest", CERTIFICATES, "v1", "certificatesigningrequests")

    def addon_token(self, cluster: str, account: str) -> Attributes:
        path = f"{REGISTRATION}/IssueAddOnToken"
        return Attributes("create", path, "", "v1", "serviceaccounts", "token", cluster, account)

    def following(self, name: str) -> Attributes:
        path = f"{REGISTRATION}/FollowRequest"
        return Attributes("watch", path, CERTIFICATES, "v1", "certificatesigningrequests", name=name)

    def recovery(self) -> Attributes:
        return Attributes("create", f"{REGISTRATION}/Recover", CERTIFICATES, "v1", "certificatesigningrequests")

    def session(self, cluster: ClusterName | None) -> Attributes:
        path = f"{SESSION}/Connect"
        return Attributes("connect", path, self._clusters, "v1", "managedclusters", "session", name=cluster or "")

    def beat(self, cluster: ClusterName) -> Attributes:
        lease = ("coordination.k8s.io", "v1", "leases")
        return Attributes("update", f"{SESSION}/Connect", *lease, namespace=cluster, name="managed-cluster-lease")

    def status(self, cluster: ClusterName) -> Attributes:
        path = f"{SESSION}/Connect"
        return Attributes("patch", path, self._clusters, "v1", "managedclusters", "status", name=cluster)

    def standby(self, name: str) -> Attributes:
        """Counts as a status report."""
        return Attributes("patch", f"{REGISTRATION}/StandBy", self._clusters, "v1", "managedclusters", "status", name=name)

    def leaving(self, name: str) -> Attributes:
        return Attributes("delete", f"{REGISTRATION}/Leave", self._clusters, "v1", "managedclusters", name=name)

    def addon(self, cluster: ClusterName, name: str) -> Attributes:
        path = f"{SESSION}/Connect"
        return Attributes("patch", path, self._addons, "v1beta1", "managedclusteraddons", "status", cluster, name)
