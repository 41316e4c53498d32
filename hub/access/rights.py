"""What follows from the hub's records, without any role: the rights of agents and of bootstrap credentials, as OCM gives them.

who                                   its own ManagedCluster                     its namespace              requests
an agent, denied or not yet accepted  get, list, watch                           nothing                    nothing
the agent of an accepted cluster      get, list, watch, update, status           leases, add-ons, events    its cluster's
another agent of the same cluster     nothing                                    nothing                    nothing
a bootstrap credential                create, get, list, watch; unbound: of any  nothing                    its name's; its own

"Requests" are CertificateSigningRequests: created, and seen by the label of the cluster or one by one. The agent of a cluster
is the one that came last and whose certificate stands; the names in a certificate's subject decide nothing.
"""

from dataclasses import dataclass
from functools import lru_cache

from hub.api.bootstrapcredentials.credential import CredentialRecord
from hub.api.certificates.certificate import CertificateRecord, Purpose
from hub.api.core.roles import CORE, CSRS, EVENTS, LEASES, READ, Groups
from machinery.apiserver.access import Attributes
from machinery.apiserver.authz.rules import PolicyRule
from machinery.errors import BadRequestError
from machinery.identity import (
    CLUSTER_LABEL,
    AgentId,
    ClusterName,
    CredentialId,
    bootstrap_user,
    cluster_group,
    parse_agent_user,
)
from machinery.meta.selectors import Operator, parse_label_selector

REQUESTS = "certificatesigningrequests"
BY_ROLES = frozenset((Purpose.OPERATOR, Purpose.LOGIN))
"""Whose rights come from roles alone."""


@dataclass(frozen=True, slots=True)
class CallerStanding:
    """What the hub's records say of who asks. A bootstrap credential without a cluster is bound to no name."""

    purpose: Purpose
    cluster: ClusterName | None = None
    agent: AgentId | None = None
    user: str = ""
    credential: CredentialId | None = None
    """Of a bootstrap credential that is bound to no single name: its other bounds are looked up."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What the rights in a cluster depend on: whether it is accepted, and which agent is its own.

    `denied`: somebody denied it after it was accepted. `leaving`: accepted and being deleted, so that its add-ons clean up.
    """

    accepted: bool
    agent: AgentId | None
    denied: bool = False
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Rights:
    """Rules at the cluster scope, and those in one namespace."""

    rules: tuple[PolicyRule, ...] = ()
    namespace: str = ""
    namespaced: tuple[PolicyRule, ...] = ()
    selects: tuple[PolicyRule, ...] = ()
    """Rules for whoever selects one object by its name, whichever."""
    standing: CallerStanding | None = None
    """Whose requests may be seen; None: nobody's."""
    foreseen: tuple[PolicyRule, ...] = ()
    """What a review is told that names no object: it is open for objects of its own. OCM's agent asks so about a hub."""

    def allow(self, asked: Attributes) -> bool:
        """Whether these rights allow it. `get` of one request is not among it: that is for `own_request` to say."""
        if not (asked.path or asked.name or asked.selected_name) and any(rule.allows(asked) for rule in self.foreseen):
            return True
        if asked.resource == REQUESTS and asked.group == CSRS and asked.verb in READ:
            return asked.verb != "get" and self._selects_own(asked)
        if any(rule.allows(asked) for rule in self.rules):
            return True
        if asked.selected_name and not asked.name and any(rule.allows(asked) for rule in self.selects):
            return True
        at_home = bool(self.namespace) and asked.namespace == self.namespace
        return at_home and any(rule.allows(asked) for rule in self.namespaced)

    def asks_for_request(self, asked: Attributes) -> bool:
        """Whether one request is asked for by its name, so that `own_request` decides."""
        one = asked.verb == "get" and bool(asked.name) and not asked.subresource
        return one and (asked.group, asked.resource) == (CSRS, REQUESTS) and self.standing is not None

    def own_request(self, *, requester: str, cluster: str) -> bool:
        """Whether a request that `requester` made for `cluster` may be seen."""
        who = self.standing
        return who is not None and (requester == who.user or (who.cluster is not None and cluster == who.cluster))

    def held(self, namespace: str) -> tuple[PolicyRule, ...]:
        """All the rules in a namespace, for a review."""
        return (*self.rules, *(self.namespaced if namespace == self.namespace else ()))

    def _selects_own(self, asked: Attributes) -> bool:
        if asked.name or asked.subresource or self.standing is None:
            return False
        cluster = selected_cluster(asked.label_selector)
        return cluster is not None and self.standing.cluster in (None, cluster)


NOTHING = Rights()


def selected_cluster(selector: str) -> ClusterName | None:
    """The only cluster whose labelled objects a label selector chooses; None when it leaves several.

    Read by the very parser that selects.
    """
    try:
        requirements = parse_label_selector(selector).requirements
    except BadRequestError:
        return None
    named = [
        term.values[0]
        for term in requirements
        if term.name == CLUSTER_LABEL and term.operator in (Operator.EQUALS, Operator.IN) and len(term.values) == 1
    ]
    return ClusterName(named[0]) if named and named[0] else None


def standing_of(holder: object) -> CallerStanding | None:
    """From a record of the hub; None: rights come from roles alone."""
    if isinstance(holder, CallerStanding):
        return holder
    if isinstance(holder, CredentialRecord):
        credential = holder.id if holder.cluster is None else None
        return CallerStanding(Purpose.BOOTSTRAP, holder.cluster, user=bootstrap_user(holder.id), credential=credential)
    if isinstance(holder, CertificateRecord) and holder.purpose not in BY_ROLES:
        unbound = holder.purpose is Purpose.BOOTSTRAP and holder.cluster is None
        credential = holder.credential if unbound else None
        return CallerStanding(holder.purpose, holder.cluster, holder.agent, holder.user, credential)
    return None


def named_standing(user: str, groups: tuple[str, ...]) -> CallerStanding | None:
    """Whose names these would be: for reviews of access, which ask by name."""
    agent = parse_agent_user(user)
    if agent is None or cluster_group(agent[0]) not in groups:
        return None
    return CallerStanding(Purpose.AGENT, agent[0], agent[1], user)


def rights_of(standing: CallerStanding, view: ClusterView | None, groups: Groups) -> Rights:
    """`view`: of the standing's cluster, when it has one and is an agent's."""
    if standing.purpose is Purpose.BOOTSTRAP:
        return _bootstrap_rights(standing, groups)
    if standing.purpose is not Purpose.AGENT or view is None or standing.agent is None or view.agent != standing.agent:
        return NOTHING
    return _agent_rights(standing, groups) if view.accepted else _visitor_rights(standing, groups)


@lru_cache(maxsize=4096)
def _visitor_rights(standing: CallerStanding, groups: Groups) -> Rights:
    return Rights((PolicyRule(READ, (groups.clusters,), ("managedclusters",), (str(standing.cluster),)),))


@lru_cache(maxsize=4096)
def _agent_rights(standing: CallerStanding, groups: Groups) -> Rights:
    own = (str(standing.cluster),)
    return Rights(
        rules=(
            PolicyRule((*READ, "update"), (groups.clusters,), ("managedclusters",), own),
            PolicyRule(("patch", "update"), (groups.clusters,), ("managedclusters/status",), own),
            PolicyRule(("renew",), (groups.register,), ("managedclusters/clientcertificates",)),
            PolicyRule(("create", *READ), (CSRS,), (REQUESTS,)),
        ),
        namespace=str(standing.cluster),
        namespaced=(
            PolicyRule((*READ, "update"), (LEASES,), ("leases",)),
            PolicyRule(READ, (groups.addons,), ("managedclusteraddons",)),
            PolicyRule(("patch", "update"), (groups.addons,), ("managedclusteraddons/status",)),
            PolicyRule(("create", "patch", "update"), (CORE, EVENTS), ("events",)),
        ),
        standing=standing,
    )


@lru_cache(maxsize=4096)
def _bootstrap_rights(standing: CallerStanding, groups: Groups) -> Rights:
    """One that is bound to no name looks at clusters by their name, one at a time."""
    bound = standing.cluster is not None
    names = (str(standing.cluster),) if bound else ()
    return Rights(
        rules=(
            PolicyRule(("create",), (groups.clusters,), ("managedclusters",)),
            PolicyRule(READ if bound else ("get",), (groups.clusters,), ("managedclusters",), names),
            PolicyRule(("create", *READ), (CSRS,), (REQUESTS,)),
        ),
        selects=() if bound else (PolicyRule(("list", "watch"), (groups.clusters,), ("managedclusters",)),),
        standing=standing,
        foreseen=(PolicyRule(("get",), (groups.clusters,), ("managedclusters",)), PolicyRule(READ, (CSRS,), (REQUESTS,))),
    )
