"""What an actor may at the HTTPS door, as fixed rules: operators everything, everybody known the discovery, an agent its own.

Rights that operators can hand out themselves (RBAC objects) will stand beside these rules.
"""

from machinery.apiserver.access import OPEN_PATHS, Attributes, Authorizer, Decision
from machinery.apiserver.storage import Actor
from machinery.identity import OPERATOR_GROUP, ClusterName, parse_agent_user

ALLOWED = Decision(allowed=True)
REFUSED = Decision(allowed=False)
AUTHENTICATED_GROUP = "system:authenticated"
DISCOVERY = ("/api", "/apis", "/openapi")
READ = ("get", "list", "watch")
OWN_OBJECTS = ("leases", "managedclusteraddons")
"""What an agent may read in its cluster's namespace."""


class StaticAuthorizer(Authorizer):
    """Deny by default."""

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        return decide(actor, attributes)


def decide(actor: Actor, asked: Attributes) -> Decision:
    """The rules, as a function."""
    if OPERATOR_GROUP in actor.groups:
        return ALLOWED
    if not asked.resource:
        return _on_path(actor, asked)
    agent = parse_agent_user(actor.user)
    return ALLOWED if agent is not None and _is_own(agent[0], asked) else REFUSED


def _on_path(actor: Actor, asked: Attributes) -> Decision:
    if asked.verb != "get":
        return REFUSED
    if asked.path in OPEN_PATHS:
        return ALLOWED
    known = AUTHENTICATED_GROUP in actor.groups
    is_discovery = asked.path == "/" or any(asked.path == root or asked.path.startswith(f"{root}/") for root in DISCOVERY)
    return ALLOWED if known and is_discovery else REFUSED


def _is_own(cluster: ClusterName, asked: Attributes) -> bool:
    if asked.verb not in READ:
        return False
    if asked.resource == "managedclusters":
        return asked.name == cluster
    return asked.resource in OWN_OBJECTS and asked.namespace == cluster
