"""Selectable fields besides name and namespace, as in `--field-selector status.available=Unknown`.

A missing field equals the empty string: `status.available=` selects clusters that never reported, `status.available!=True` all
clusters that are not known to be available. The store keeps one row per field.
"""

from collections.abc import Mapping

from hub.api.managedclusteraddons.health import FEATURE_PREFIX as ADDON_PREFIX
from hub.api.managedclusters import agent_annotations as reported
from hub.api.managedclustersets import LABEL as SET_LABEL
from hub.api.meta import document as doc
from machinery.meta import conditions
from machinery.meta.objects import Document

CONDITIONS, CLAIMS = "status.conditions.", "status.clusterClaims."
CAPACITY, ALLOCATABLE, TAINTS = "status.capacity.", "status.allocatable.", "spec.taints."
"""`where` uses all of these; field selectors use taints only."""
HUB_ACCEPTS, VERSION, AGENT_VERSION = "spec.hubAcceptsClient", "status.version.kubernetes", "status.agentVersion"
CLUSTER_FIELDS = (HUB_ACCEPTS, VERSION, AGENT_VERSION, f"{CONDITIONS}*", f"{CLAIMS}*", f"{TAINTS}*")
"""Fields of a selector; `*` stands for a condition type, a claim name or a taint key."""
CLUSTER_LABELS: Mapping[str, str] = {"spec.clusterSet": SET_LABEL, "status.addons.*": f"{ADDON_PREFIX}*"}
"""Fields that are stored as labels: the cluster set, and the state of each add-on."""
CLUSTER_ALIASES: Mapping[str, str] = {
    "status.accepted": f"{CONDITIONS}{conditions.HUB_ACCEPTED}",
    "status.available": f"{CONDITIONS}{conditions.AVAILABLE}",
    "status.clockSynced": f"{CONDITIONS}{conditions.CLOCK_SYNCED}",
    "status.joined": f"{CONDITIONS}{conditions.JOINED}",
}
"""Short names of conditions."""
ADD_ON_FIELDS = (f"{CONDITIONS}*",)
ADD_ON_ALIASES: Mapping[str, str] = {"status.available": f"{CONDITIONS}{conditions.ADDON_AVAILABLE}"}


def of_cluster(cluster: Document) -> dict[str, str]:
    """The selectable fields of a ManagedCluster."""
    accepts = doc.mapping(cluster, "spec").get("hubAcceptsClient")
    claims = (claim for claim in doc.sequence(cluster, "status", "clusterClaims") if isinstance(claim, Mapping))
    taints = (taint for taint in doc.sequence(cluster, "spec", "taints") if isinstance(taint, Mapping))
    return {
        HUB_ACCEPTS: "true" if accepts else "false",
        VERSION: str(doc.mapping(cluster, "status", "version").get("kubernetes") or ""),
        AGENT_VERSION: reported.agent_version(cluster),
        **of_conditions(cluster),
        **{f"{CLAIMS}{claim.get('name')}": str(claim.get("value") or "") for claim in claims},
        **{f"{CAPACITY}{name}": str(value) for name, value in doc.mapping(cluster, "status", "capacity").items()},
        **{f"{ALLOCATABLE}{name}": str(value) for name, value in doc.mapping(cluster, "status", "allocatable").items()},
        **{f"{TAINTS}{taint.get('key')}": str(taint.get("effect") or "") for taint in taints},
    }


def of_conditions(document: Document) -> dict[str, str]:
    """Status by condition."""
    return {f"{CONDITIONS}{entry.get('type')}": str(entry.get("status") or "") for entry in doc.conditions(document)}
