"""The policy of a hub that was given none: whoever changes something or reads a secret leaves a record.

Left out is what says who is alive rather than what was done: beats, status reports, events and access reviews. Whoever wants
them writes a policy.
"""

from hub.api.auditrecords.record import AuditLevel
from hub.audit.policy import AuditPolicy, AuditRule, GroupResources
from machinery.identity import ALL_CLUSTERS_GROUP

RBAC = "rbac.authorization.k8s.io"
READS = ("get", "list", "watch", "head", "options")
CHANGES = ("create", "update", "patch", "delete", "deletecollection")


def default_policy(group_suffix: str) -> AuditPolicy:
    clusters, addons = f"cluster.{group_suffix}", f"addon.{group_suffix}"
    return AuditPolicy(
        (
            # secrets and tokens, whoever reads or changes them
            AuditRule(
                level=AuditLevel.METADATA,
                resources=(
                    GroupResources("", ("secrets", "serviceaccounts/token")),
                    GroupResources("authentication.k8s.io", ("tokenreviews",)),
                ),
            ),
            # who looks leaves no other trace
            AuditRule(level=AuditLevel.NONE, verbs=READS),
            # who asks for a right changes nothing
            AuditRule(
                level=AuditLevel.NONE,
                resources=(
                    GroupResources("authorization.k8s.io"),
                    GroupResources("authentication.k8s.io", ("selfsubjectreviews",)),
                ),
            ),
            # signs of life: leases are renewed, agents report, events are told
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
            # rights, acceptance and approval: what exactly was granted
            AuditRule(
                level=AuditLevel.REQUEST,
                verbs=CHANGES,
                resources=(
                    GroupResources(RBAC),
                    GroupResources(clusters),
                    GroupResources("certificates.k8s.io", ("certificatesigningrequests/approval",)),
                ),
            ),
            # all else that changes something
            AuditRule(level=AuditLevel.METADATA),
        )
    )
