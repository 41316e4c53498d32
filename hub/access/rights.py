"""Rights of agents and bootstrap credentials without any role. They follow from the hub's records, as in OCM.

user                                  its own ManagedCluster                     its namespace              requests
an agent, denied or not yet accepted  get, list, watch                           nothing                    nothing
the agent of an accepted cluster      get, list, watch, update, status           leases, add-ons, events    its cluster's
another agent of the same cluster     nothing                                    nothing                    nothing
a bootstrap credential                create, get, list, watch; unbound: of any  nothing                    its name's; its own

"Requests" are CertificateSigningRequests: create, and read by the label of the cluster or by name. The agent of a cluster is
the latest one whose certificate is valid; the names in a certificate's subject have no effect.
"""

from dataclasses import dataclass
from functools import lru_cache

from hub.api.bootstrapcredentials import CredentialRecord
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.clusterroles import CORE, CSRS, EVENTS, LEASES, READ, ApiGroups
from machinery.apiserver.access import Attributes
from machinery.apiserver.authz.rbac import PolicyRule
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
"""Purposes whose rights come from roles alone."""


@dataclass(frozen=True, slots=True)
class CallerRecord:
    """The hub's records of a caller. A bootstrap credential without a cluster is not bound to one cluster name."""

    purpose: Purpose
    cluster: ClusterName | None = None
    agent: AgentId | None = None
    user: str = ""
    credential: CredentialId | None = None
    """Set if a bootstrap credential is not bound to one cluster name; its other bounds are looked up."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """State of a cluster that rights in it depend on: acceptance, and its own agent.

    `denied`: denied after it had been accepted. `leaving`: accepted and being deleted, so that add-ons can clean up.
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
    """Rules for requests that select one object by name; the name may be any."""
    standing: CallerRecord | None = None
    """The caller whose certificate requests may be read; None: none may."""
    foreseen: tuple[PolicyRule, ...] = ()
    """Rules for access reviews that name no object: allowed if some object would be. OCM's agent makes such reviews."""

    def allow(self, asked: Attributes) -> bool:
        """Whether these rights allow a request. `get` of a CertificateSigningRequest is decided by `own_request` instead."""
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

    def is_request_read(self, asked: Attributes) -> bool:
        """Whether the request is `get` of one CertificateSigningRequest, which `own_request` decides."""
        one = asked.verb == "get" and bool(asked.name) and not asked.subresource
        return one and (asked.group, asked.resource) == (CSRS, REQUESTS) and self.standing is not None

    def own_request(self, *, requester: str, cluster: str) -> bool:
        """Whether the caller may read a CertificateSigningRequest that `requester` made for `cluster`."""
        who = self.standing
        return who is not None and (requester == who.user or (who.cluster is not None and cluster == who.cluster))

    def held(self, namespace: str) -> tuple[PolicyRule, ...]:
        """Returns all rules in a namespace, for SelfSubjectRulesReviews."""
        return (*self.rules, *(self.namespaced if namespace == self.namespace else ()))

    def _selects_own(self, asked: Attributes) -> bool:
        if asked.name or asked.subresource or self.standing is None:
            return False
        cluster = selected_cluster(asked.label_selector)
        return cluster is not None and self.standing.cluster in (None, cluster)


NOTHING = Rights()


def selected_cluster(selector: str) -> ClusterName | None:
    """Returns the only cluster whose labelled objects a label selector selects; None if it is not limited to one.

    It uses the same parser as the selection itself.
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


def caller_record_of(holder: object) -> CallerRecord | None:
    """Returns the standing of a holder by its record; None: rights come from roles alone."""
    if isinstance(holder, CallerRecord):
        return holder
    if isinstance(holder, CredentialRecord):
        credential = holder.id if holder.cluster is None else None
        return CallerRecord(Purpose.BOOTSTRAP, holder.cluster, user=bootstrap_user(holder.id), credential=credential)
    if isinstance(holder, CertificateRecord) and holder.purpose not in BY_ROLES:
        unbound = holder.purpose is Purpose.BOOTSTRAP and holder.cluster is None
        credential = holder.credential if unbound else None
        return CallerRecord(holder.purpose, holder.cluster, holder.agent, holder.user, credential)
    return None


def caller_record_by_name(user: str, groups: tuple[str, ...]) -> CallerRecord | None:
    """Returns the standing of an agent by its names, for access reviews, which give only names."""
    agent = parse_agent_user(user)
    if agent is None or cluster_group(agent[0]) not in groups:
        return None
    return CallerRecord(Purpose.AGENT, agent[0], agent[1], user)


def rights_of(standing: CallerRecord, view: ClusterView | None, groups: ApiGroups) -> Rights:
    """Returns the rights of a caller. `view`: of its cluster, needed for agents only."""
    if standing.purpose is Purpose.BOOTSTRAP:
        return _bootstrap_rights(standing, groups)
    if standing.purpose is not Purpose.AGENT or view is None or standing.agent is None or view.agent != standing.agent:
        return NOTHING
    return _agent_rights(standing, groups) if view.accepted else _visitor_rights(standing, groups)


@lru_cache(maxsize=4096)
def _visitor_rights(standing: CallerRecord, groups: ApiGroups) -> Rights:
    return Rights((PolicyRule(READ, (groups.clusters,), ("managedclusters",), (str(standing.cluster),)),))


@lru_cache(maxsize=4096)
def _agent_rights(standing: CallerRecord, groups: ApiGroups) -> Rights:
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
def _bootstrap_rights(standing: CallerRecord, groups: ApiGroups) -> Rights:
    """A credential that is not bound to a name may read clusters only by name, one at a time."""
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
