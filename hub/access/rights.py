"""Rights of agents and bootstrap credentials, which the hub computes from its records without roles, as in OCM.

user                                  its own ManagedCluster                     its namespace              requests
an agent, denied or not yet accepted  get, list, watch                           nothing                    nothing
the agent of an accepted cluster      get, list, watch, update, status           leases, add-ons, events    its cluster's
another agent of the same cluster     nothing                                    nothing                    nothing
a bootstrap credential                create, get, list, watch; unbound: of any  nothing                    its cluster's, own

"Requests" are CertificateSigningRequests: create, and read by the label of the cluster or by name. "Unbound" means not bound to
one cluster name. If a cluster has several agents, its agent is the one with the session, else the one that registered last. The
names in a certificate's subject have no effect.
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
"""Purposes whose holders have only the rights of their roles."""


@dataclass(frozen=True, slots=True)
class CallerRecord:
    """The hub's records of a caller. `cluster` None: a bootstrap credential that is not bound to one cluster name."""

    purpose: Purpose
    cluster: ClusterName | None = None
    agent: AgentId | None = None
    user: str = ""
    credential: CredentialId | None = None
    """Id of a bootstrap credential that is not bound to one cluster name; else None. Its other bounds are in the database."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """State of a cluster on which rights depend: its acceptance and its current agent.

    `denied`: denied by an operator, before or after its acceptance. `leaving`: accepted and being deleted; add-ons clean up.
    """

    accepted: bool
    agent: AgentId | None
    denied: bool = False
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Rights:
    """What a caller may do: `rules` at cluster scope, `namespaced` in `namespace`."""

    rules: tuple[PolicyRule, ...] = ()
    namespace: str = ""
    namespaced: tuple[PolicyRule, ...] = ()
    selects: tuple[PolicyRule, ...] = ()
    """Rules for requests that select one object, of any name, with a field selector."""
    caller: CallerRecord | None = None
    """The caller whose certificate requests may be read; None: no certificate requests may be read."""
    for_reviews: tuple[PolicyRule, ...] = ()
    """More rules for access reviews, because OCM's agent and operator send reviews without the name of an object."""

    def allow(self, attributes: Attributes) -> bool:
        """Whether these rights allow a request. `get` of a CertificateSigningRequest is decided by `own_request` instead."""
        if not (attributes.path or attributes.name or attributes.selected_name) and any(
            rule.allows(attributes) for rule in self.for_reviews
        ):
            return True
        if attributes.resource == REQUESTS and attributes.group == CSRS and attributes.verb in READ:
            return attributes.verb != "get" and self._selects_own(attributes)
        if any(rule.allows(attributes) for rule in self.rules):
            return True
        if attributes.selected_name and not attributes.name and any(rule.allows(attributes) for rule in self.selects):
            return True
        is_own_namespace = bool(self.namespace) and attributes.namespace == self.namespace
        return is_own_namespace and any(rule.allows(attributes) for rule in self.namespaced)

    def is_request_read(self, attributes: Attributes) -> bool:
        """Whether the request is `get` of one CertificateSigningRequest, which `own_request` decides."""
        one = attributes.verb == "get" and bool(attributes.name) and not attributes.subresource
        return one and (attributes.group, attributes.resource) == (CSRS, REQUESTS) and self.caller is not None

    def own_request(self, *, requester: str, cluster: str) -> bool:
        """Whether the caller may read a CertificateSigningRequest that `requester` made for `cluster`."""
        caller = self.caller
        return caller is not None and (requester == caller.user or (caller.cluster is not None and cluster == caller.cluster))

    def held(self, namespace: str) -> tuple[PolicyRule, ...]:
        return (*self.rules, *(self.namespaced if namespace == self.namespace else ()))

    def _selects_own(self, attributes: Attributes) -> bool:
        if attributes.name or attributes.subresource or self.caller is None:
            return False
        cluster = selected_cluster(attributes.label_selector)
        return cluster is not None and self.caller.cluster in (None, cluster)


NOTHING = Rights()


def selected_cluster(selector: str) -> ClusterName | None:
    """Returns the only cluster whose objects a label selector can select; None if it can select objects of several clusters.

    Uses the same parser as the selection itself.
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
    """Returns the CallerRecord for the record `holder` of a certificate or credential; None if only roles give rights."""
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
    """Returns the record of the agent with this user and these groups. None: no agent. Access reviews have only names."""
    agent = parse_agent_user(user)
    if agent is None or cluster_group(agent[0]) not in groups:
        return None
    return CallerRecord(Purpose.AGENT, agent[0], agent[1], user)


def rights_of(caller: CallerRecord, view: ClusterView | None, groups: ApiGroups) -> Rights:
    """Returns the rights of a caller. `view`: the ClusterView of the caller's cluster, needed only for agents."""
    if caller.purpose is Purpose.BOOTSTRAP:
        return _bootstrap_rights(caller, groups)
    if caller.purpose is not Purpose.AGENT or view is None or caller.agent is None or view.agent != caller.agent:
        return NOTHING
    return _agent_rights(caller, groups) if view.accepted else _visitor_rights(caller, groups)


@lru_cache(maxsize=4096)
def _visitor_rights(caller: CallerRecord, groups: ApiGroups) -> Rights:
    return Rights((PolicyRule(READ, (groups.clusters,), ("managedclusters",), (str(caller.cluster),)),))


@lru_cache(maxsize=4096)
def _agent_rights(caller: CallerRecord, groups: ApiGroups) -> Rights:
    own = (str(caller.cluster),)
    return Rights(
        rules=(
            PolicyRule((*READ, "update"), (groups.clusters,), ("managedclusters",), own),
            PolicyRule(("patch", "update"), (groups.clusters,), ("managedclusters/status",), own),
            PolicyRule(("renew",), (groups.register,), ("managedclusters/clientcertificates",)),
            PolicyRule(("create", *READ), (CSRS,), (REQUESTS,)),
        ),
        namespace=str(caller.cluster),
        namespaced=(
            PolicyRule((*READ, "update"), (LEASES,), ("leases",)),
            PolicyRule(READ, (groups.addons,), ("managedclusteraddons",)),
            PolicyRule(("patch", "update"), (groups.addons,), ("managedclusteraddons/status",)),
            PolicyRule(("create", "patch", "update"), (CORE, EVENTS), ("events",)),
            # not served here: without these rights OCM's operator reports a klusterlet as degraded, and repeats its reviews
            PolicyRule((*READ, "update"), (f"work.{groups.suffix}",), ("manifestworks",)),
            PolicyRule(("patch", "update"), (f"work.{groups.suffix}",), ("manifestworks/status",)),
        ),
        caller=caller,
        for_reviews=(PolicyRule(READ, (CSRS,), (REQUESTS,)),),
    )


@lru_cache(maxsize=4096)
def _bootstrap_rights(caller: CallerRecord, groups: ApiGroups) -> Rights:
    """A credential that is not bound to a name may read clusters only by name, one at a time."""
    bound = caller.cluster is not None
    names = (str(caller.cluster),) if bound else ()
    return Rights(
        rules=(
            PolicyRule(("create",), (groups.clusters,), ("managedclusters",)),
            PolicyRule(READ if bound else ("get",), (groups.clusters,), ("managedclusters",), names),
            PolicyRule(("create", *READ), (CSRS,), (REQUESTS,)),
        ),
        selects=() if bound else (PolicyRule(("list", "watch"), (groups.clusters,), ("managedclusters",)),),
        caller=caller,
        for_reviews=(PolicyRule(("get",), (groups.clusters,), ("managedclusters",)), PolicyRule(READ, (CSRS,), (REQUESTS,))),
    )
