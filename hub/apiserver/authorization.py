"""Who may do what on the HTTPS door: few rules, fixed, from the names in the certificate. TODO(#3): RBAC with access reviews.

- `system:masters` may do everything.
- An agent may get and watch its own ManagedCluster, by its path or selected by its name.
- Whoever is known may look at discovery; anybody at version and health.
"""

from machinery.apiserver.access import OPEN_PATHS, Attributes, Authorizer, Decision
from machinery.apiserver.storage import Actor
from machinery.identity import OPERATOR_GROUP, cluster_group, parse_agent_user

AUTHENTICATED = "system:authenticated"
DISCOVERY = ("/api", "/apis", "/openapi")
YES, NO = Decision(allowed=True), Decision(allowed=False)


class StaticAuthorizer(Authorizer):
    """The rules above, for the groups of one suffix."""

    def __init__(self, group_suffix: str) -> None:
        self._clusters = f"cluster.{group_suffix}"

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        if OPERATOR_GROUP in actor.groups:
            return YES
        if not attributes.resource:
            return YES if _may_read_path(actor, attributes) else NO
        return YES if self._is_own_cluster(actor, attributes) else NO

    def _is_own_cluster(self, actor: Actor, attributes: Attributes) -> bool:
        agent = parse_agent_user(actor.user)
        return (
            agent is not None
            and cluster_group(agent[0]) in actor.groups
            and (attributes.group, attributes.resource) == (self._clusters, "managedclusters")
            and not attributes.subresource
            and attributes.verb in ("get", "list", "watch")
            and (attributes.name or attributes.selected_name) == agent[0]
        )


def _may_read_path(actor: Actor, attributes: Attributes) -> bool:
    if attributes.verb not in ("get", "head"):
        return False
    if attributes.path in OPEN_PATHS:
        return True
    discovery = any(attributes.path == root or attributes.path.startswith(f"{root}/") for root in DISCOVERY)
    return discovery and AUTHENTICATED in actor.groups
