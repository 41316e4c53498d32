"""Authorization at the HTTPS door, by the hub's records and by RBAC roles.

`system:masters` may do everything, and every caller may read version and health, even if roles cannot be read. The rights of
agents and bootstrap credentials follow from their records (`hub.access.rights`). Roles of an agent's groups count only for the
current agent of an accepted cluster. Roles of an add-on's groups count until its cluster is denied or deleted. ServiceAccounts
in the namespace of a denied cluster may do nothing, because the cluster's add-ons have their tokens.
"""

from collections.abc import Mapping
from dataclasses import replace

from hub.access.cluster_acceptance import ClusterAcceptanceCache
from hub.access.rights import (
    NOTHING,
    REQUESTS as CERTIFICATE_REQUESTS,
    CallerRecord,
    Rights,
    caller_record_by_name,
    caller_record_of,
    rights_of,
    selected_cluster,
)
from hub.api.certificates import CertificateRecord, Purpose
from hub.api.clusterroles import CSRS, ApiGroups
from hub.api.meta import document as doc
from hub.api.meta.change import REQUESTS
from hub.https_door.callers.authentication import mark_of_serial
from hub.ports import Store, Transaction
from hub.registry.certificatesigningrequests.credential_uses import is_of_set
from hub.registry.owners import denied_error
from machinery.apiserver.access import OPEN_PATHS, Attributes, Authorizer, Decision
from machinery.apiserver.authn.aggregation import Origin
from machinery.apiserver.authz.rbac import HeldRules, RbacAuthorizer
from machinery.apiserver.storage import Actor
from machinery.errors import DenialCause
from machinery.identity import (
    AUTHENTICATED_GROUP,
    CLUSTER_LABEL,
    OPERATOR_GROUP,
    SERVICE_ACCOUNT_PREFIX,
    ClusterName,
    CredentialId,
)
from machinery.meta.objects import Key

ALLOWED = Decision(allowed=True)
CLUSTERS = "managedclusters"


class HubAuthorizer(Authorizer):
    """Authorizes agents and bootstrap credentials by their records in the hub, and all callers by RBAC roles."""

    def __init__(self, store: Store, rbac: RbacAuthorizer, standings: ClusterAcceptanceCache, groups: ApiGroups) -> None:
        self._store = store
        self._rbac = rbac
        self._standings = standings
        self._groups = groups

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        is_open = not attributes.resource and attributes.path in OPEN_PATHS and attributes.verb in ("get", "head")
        if OPERATOR_GROUP in actor.groups or is_open:
            return ALLOWED
        standing = caller_record_of(actor.holder)
        if standing is None:
            return await self._of_others(actor, attributes)
        rights, counted = await self._of(actor, standing)
        if rights.allow(attributes) and await self._is_within(standing, attributes):
            return ALLOWED
        if rights.is_request_read(attributes) and await self._is_own(rights, attributes.name):
            return ALLOWED
        decision = self._rbac.decide(counted, attributes)
        return decision if decision.allowed else await self._refusal(decision, standing)

    async def _refusal(self, decision: Decision, standing: CallerRecord) -> Decision:
        if standing.cluster is None or not await self._is_denied(standing.cluster):
            return decision
        return replace(decision, reason=str(denied_error(standing.cluster)), denial_cause=DenialCause.CLUSTER_DENIED)

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        standing = caller_record_of(actor.holder)
        if standing is None or OPERATOR_GROUP in actor.groups:
            home = None if OPERATOR_GROUP in actor.groups else _home(actor)
            return HeldRules((), ()) if home is not None and await self._is_denied(home) else self._rbac.held(actor, namespace)
        rights, counted = await self._of(actor, standing)
        held = self._rbac.held(counted, namespace)
        return HeldRules((*rights.held(namespace), *held.rules), held.errors)

    async def _of_others(self, actor: Actor, attributes: Attributes) -> Decision:
        """Decides only by roles, but refuses ServiceAccounts of a denied cluster."""
        if (cluster := _home(actor)) is not None:
            if await self._is_denied(cluster):
                reason = f'cluster "{cluster}" is denied, so its ServiceAccounts may do nothing'
                return Decision(allowed=False, reason=reason, denial_cause=DenialCause.CLUSTER_DENIED)
            self._standings.granted(cluster, _mark(actor))
        return self._rbac.decide(actor, attributes)

    async def _is_denied(self, cluster: ClusterName) -> bool:
        return (await self._standings.of(cluster)).denied

    async def _of(self, actor: Actor, standing: CallerRecord) -> tuple[Rights, Actor]:
        if standing.purpose is Purpose.BOOTSTRAP or standing.cluster is None:
            return rights_of(standing, None, self._groups), actor
        view = await self._standings.of(standing.cluster)
        rights = rights_of(standing, view, self._groups) if standing.purpose is Purpose.AGENT else NOTHING
        is_addon = standing.purpose is Purpose.ADDON
        own = (view.accepted and (is_addon or view.agent == standing.agent)) or (view.leaving and is_addon)
        if own and isinstance(actor.holder, CertificateRecord):
            self._standings.granted(standing.cluster, mark_of_serial(actor.holder.serial))
        return rights, actor if own else replace(actor, groups=(AUTHENTICATED_GROUP,))

    async def _is_within(self, standing: CallerRecord, asked: Attributes) -> bool:
        """Whether a bootstrap credential for several clusters permits the cluster of the request. True for other callers."""
        cluster = self._asked_for(asked) if standing.credential is not None else None
        if standing.credential is None or cluster is None:
            return True
        return await self._store.read(_may_see, standing.credential, cluster)

    def _asked_for(self, asked: Attributes) -> ClusterName | None:
        """Returns the only cluster of a request; None if there is no cluster, or several."""
        if (asked.group, asked.resource) == (CSRS, CERTIFICATE_REQUESTS):
            return selected_cluster(asked.label_selector)
        name = asked.name or asked.selected_name
        return ClusterName(name) if name and (asked.group, asked.resource) == (self._groups.clusters, CLUSTERS) else None

    async def _is_own(self, rights: Rights, name: str) -> bool:
        found = await self._store.read(_request, name)
        return found is not None and rights.own_request(requester=found[0], cluster=found[1])


class OwnRoles(RbacAuthorizer):
    """RBAC for users of the hub. Roles do not apply to users of another API server, who may have the same names."""

    def decide(self, actor: Actor, asked: Attributes) -> Decision:
        if actor.holder is Origin.DELEGATED and OPERATOR_GROUP not in actor.groups:
            return Decision(allowed=False, reason="roles of the hub are not for identities of the management cluster")
        return super().decide(actor, asked)

    def held(self, actor: Actor, namespace: str) -> HeldRules:
        if actor.holder is Origin.DELEGATED and OPERATOR_GROUP not in actor.groups:
            return HeldRules((), ("the management cluster decides about the rights of this user",))
        return super().held(actor, namespace)


def _mark(actor: Actor) -> str:
    """Returns the text under which an account's watches are registered: from its certificate's serial number or its uid."""
    holder = actor.holder
    return mark_of_serial(holder.serial) if isinstance(holder, CertificateRecord) else f"serviceaccount/{actor.uid}"


def _home(actor: Actor) -> ClusterName | None:
    """Returns the namespace of a ServiceAccount, which may be a cluster's; None: not a ServiceAccount."""
    namespace, _, name = actor.user.removeprefix(SERVICE_ACCOUNT_PREFIX).partition(":")
    return ClusterName(namespace) if name and actor.user.startswith(SERVICE_ACCOUNT_PREFIX) else None


def named_actor(user: str, groups: tuple[str, ...], uid: str, extra: Mapping[str, tuple[str, ...]]) -> Actor:
    """Returns an actor with these names, for access reviews. The names of an agent give the rights of that agent."""
    return Actor(user, groups, uid, extra, holder=caller_record_by_name(user, groups))


def _may_see(tx: Transaction, credential: CredentialId, cluster: ClusterName) -> bool:
    record = tx.credentials.by_id(credential)
    return record is not None and record.admits(cluster) and is_of_set(tx, record, cluster)


def _request(tx: Transaction, name: str) -> tuple[str, str] | None:
    stored = tx.objects.get(REQUESTS, Key("", name))
    if stored is None:
        return None
    requester = str(doc.mapping(stored.document, "spec").get("username", ""))
    return requester, doc.labels(stored.document).get(CLUSTER_LABEL, "")
