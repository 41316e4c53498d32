"""The default audit policy: records changes and reads of secrets.

It leaves out signs of life: beats, status reports, events and access reviews. To record them, write a policy.
"""

from hub.api.auditrecords import AuditLevel
from hub.audit.policy import AuditPolicy, AuditRule, GroupResources
from machinery.identity import ALL_CLUSTERS_GROUP

RBAC = "rbac.authorization.k8s.io"
READS = ("get", "list", "watch", "head", "options")
CHANGES = ("create", "update", "patch", "delete", "deletecollection")


def default_policy(group_suffix: str) -> AuditPolicy:
    clusters, addons = f"cluster.{group_suffix}", f"addon.{group_suffix}"
    return AuditPolicy(
        (
            # secrets and tokens, all verbs
            AuditRule(
                level=AuditLevel.METADATA,
                resources=(
                    GroupResources("", ("secrets", "serviceaccounts/token")),
                    GroupResources("authentication.k8s.io", ("tokenreviews",)),
                ),
            ),
            # other reads
            AuditRule(level=AuditLevel.NONE, verbs=READS),
            # access reviews change nothing
            AuditRule(
                level=AuditLevel.NONE,
                resources=(
                    GroupResources("authorization.k8s.io"),
                    GroupResources("authentication.k8s.io", ("selfsubjectreviews",)),
                ),
            ),
            # signs of life: renewals of leases, reports of agents, events
            AuditRule(
                level=AuditLevel.NONE,
                verbs=("update", "patch"),
                resources=(GroupResources("coordination.k8s.io", ("leases",)),),
            ),
            AuditRule(
                level=AuditLevel.NONE,
                groups=(ALL_CLUSTERS_GROUP,),
                verbs=("update", "patch"),
                resources=(GroupResources(clusters, ("managedclusters/status",)), GroupResources(addons, ("*/status",))),
            ),
            AuditRule(level=AuditLevel.NONE, resources=(GroupResources("", ("events",)), GroupResources("events.k8s.io"))),
            # permissions, acceptance and approval: with the request body, to show what was granted
            AuditRule(
                level=AuditLevel.REQUEST,
                verbs=CHANGES,
                resources=(
                    GroupResources(RBAC),
                    GroupResources(clusters),
                    GroupResources("certificates.k8s.io", ("certificatesigningrequests/approval",)),
                ),
            ),
            # all other changes
            AuditRule(level=AuditLevel.METADATA),
        )
    )
