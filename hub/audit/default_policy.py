"""The policy of a hub that was given none: whoever changes something or reads a secret leaves a record.

Left out is what says who is alive rather than what was done: beats, status reports, events and access reviews. Whoever wants
them writes a policy.
"""

from hub.api.auditrecords.record import Level
from hub.audit.policy import GroupResources, Policy, Rule
from machinery.identity import ALL_CLUSTERS_GROUP

RBAC = "rbac.authorization.k8s.io"
READS = ("get", "list", "watch", "head", "options")
CHANGES = ("create", "update", "patch", "delete", "deletecollection")


def default_policy(group_suffix: str) -> Policy:
    clusters, addons = f"cluster.{group_suffix}", f"addon.{group_suffix}"
    return Policy(
        (
            # secrets and tokens, whoever reads or changes them
            Rule(
                level=Level.METADATA,
                resources=(
                    GroupResources("", ("secrets", "serviceaccounts/token")),
                    GroupResources("authentication.k8s.io", ("tokenreviews",)),
                ),
            ),
            # who looks leaves no other trace
            Rule(level=Level.NONE, verbs=READS),
            # who asks for a right changes nothing
            Rule(
                level=Level.NONE,
                resources=(
                    GroupResources("authorization.k8s.io"),
                    GroupResources("authentication.k8s.io", ("selfsubjectreviews",)),
                ),
            ),
            # signs of life: leases are renewed, agents report, events are told
            Rule(level=Level.NONE, verbs=("update", "patch"), resources=(GroupResources("coordination.k8s.io", ("leases",)),)),
            Rule(
                level=Level.NONE,
                groups=(ALL_CLUSTERS_GROUP,),
                verbs=("update", "patch"),
                resources=(GroupResources(clusters, ("managedclusters/status",)), GroupResources(addons, ("*/status",))),
            ),
            Rule(level=Level.NONE, resources=(GroupResources("", ("events",)), GroupResources("events.k8s.io"))),
            # rights, acceptance and approval: what exactly was granted
            Rule(
                level=Level.REQUEST,
                verbs=CHANGES,
                resources=(
                    GroupResources(RBAC),
                    GroupResources(clusters),
                    GroupResources("certificates.k8s.io", ("certificatesigningrequests/approval",)),
                ),
            ),
            # all else that changes something
            Rule(level=Level.METADATA),
        )
    )
