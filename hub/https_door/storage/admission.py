"""Permissions that a write needs in addition to the write itself, as in OCM's webhooks and Kubernetes' admission of requests.

write                                                          also required
hubAcceptsClient set, or changed in either direction            update managedclusters/accept of the register group, by name
the uid of the cluster that has the name changed or removed     update managedclusters/accept of the register group, by name
the annotation denied set, changed or removed                    update managedclusters/accept of the register group, by name
the annotation bound-credentials-only removed                   update managedclusters/accept of the register group, by name
the cluster given to one of its agents, by an annotation        update managedclusters/accept of the register group, by name
the label of the cluster set set, changed or removed            create managedclustersets/join, for the old and the new set
a cluster's labels changed                                      not to be an agent, an add-on or a bootstrap credential
                                                                (the latter gives a new cluster permitted join labels)
an add-on's registrations changed, except their driver          not to be an agent, an add-on or a bootstrap credential
a ManagedClusterSetBinding made                                 create managedclustersets/bind, by the set's name
a request approved or denied                                    approve signers, by the signer's name or its domain
an ApprovalRule that accepts made or changed                    update managedclusters/accept of the register group
an ApprovalRule that approves made or changed                   approve signers, by the name of the agents' signer or its domain
a BootstrapCredential made that is bound to a set               create managedclustersets/join, for that set
a BootstrapCredential made that gives labels                    update managedclusters, of any name
a JWTAuthenticator or a WebhookAuthenticator made or changed    impersonate all users and all groups
finalizers or ownerReferences of any kind changed               not to be an agent, an add-on or a bootstrap credential
a request's certificate or failure set                          sign signers, by the signer's name or its domain
the annotation force-deletion or keep-bootstrap-credentials     not to be an agent, an add-on or a bootstrap credential
a ManagedCluster or a request made by an agent or a bootstrap   to be about its own cluster
credential that is bound to one
"""

from collections.abc import Callable, Mapping
from typing import Any

from hub.access.rights import caller_record_of
from hub.api.bootstrapcredentials import AttestationError
from hub.api.certificates import Purpose
from hub.api.clusterroles import CSRS, ApiGroups
from hub.api.managedclusteraddons.addon import leaves_registrations_unchanged
from hub.api.managedclusters.admission import permitted_join_labels
from hub.api.managedclusters.cluster import BOUND_ONLY, CLUSTER_UID, DENIED_FOR, denial_of, is_bound_only
from hub.api.managedclusters.duplicates import given_to, uid_of
from hub.api.managedclusters.removal import FORCED, KEEP_CREDENTIALS, has_credential_retention, is_forced
from hub.api.managedclustersets import DEFAULT, LABEL
from hub.api.meta import document as doc
from machinery.apiserver.access import Attributes, Decision
from machinery.apiserver.storage import Actor, Admission
from machinery.identity import CLUSTER_LABEL, SIGNER, parse_bootstrap_user
from machinery.meta.objects import Document

DECISIONS = ("Approved", "Denied")

Decide = Callable[[Actor, Attributes], Decision]


class HubAdmission:
    """Admission of writes: checks the permissions in the table of this module. Writes that match no row pass.

    `attests`: first registrations must be attested, which this door does not support. `join_labels`: keys of labels that a
    bootstrap credential may set on its new cluster, or prefix/* for all keys with a prefix; other labels are removed.
    """

    def __init__(self, decide: Decide, groups: ApiGroups, *, attests: bool = False, join_labels: tuple[str, ...] = ()) -> None:
        self._decide = decide
        self._attests = attests
        self._join_labels = join_labels
        self._groups = groups
        self._rules: Mapping[tuple[str, str], Callable[[Admission], None]] = {
            (groups.clusters, "managedclusters"): self._cluster,
            (groups.clusters, "managedclustersetbindings"): self._binding,
            (groups.addons, "managedclusteraddons"): self._addon,
            (CSRS, "certificatesigningrequests"): self._request,
            (groups.own, "approvalrules"): self._rule,
            (groups.own, "bootstrapcredentials"): self._credential,
            (groups.login, "jwtauthenticators"): self._authenticator,
            (groups.login, "webhookauthenticators"): self._authenticator,
        }

    def __call__(self, write: Admission) -> Document:
        """Check a write, and return the object to store. Raises ForbiddenError."""
        if _is_agents(write):
            _check_holds(write)
        rule = self._rules.get((write.resource.group, write.resource.resource))
        if rule is not None:
            rule(write)
        labels, is_join = doc.labels(write.new), write.old is None and parse_bootstrap_user(write.actor.user) is not None
        if rule != self._cluster or not is_join or not labels:
            return write.new
        return doc.with_metadata(write.new, labels=permitted_join_labels(labels, self._join_labels))

    def _cluster(self, write: Admission) -> None:
        if write.old is None:
            self._check_attested(write)
            _check_own(write, write.key.name)
        elif _is_agents(write) and doc.labels(write.new) != doc.labels(write.old):
            raise write.refusal(
                "an agent does not change its cluster's labels: only an operator, or the bootstrap credential, sets labels"
            )
        for note, is_set in ((KEEP_CREDENTIALS, has_credential_retention), (FORCED, is_forced)):
            if _is_agents(write) and is_set(write.new) != (write.old is not None and is_set(write.old)):
                raise write.refusal(f"an agent does not change the annotation {note}")
        former = uid_of(write.old) if write.old is not None else ""
        by_acceptance = {
            "update the HubAcceptsClient field": _accepts(write.new) != _accepts(write.old),
            f"give this name to another cluster ({CLUSTER_UID})": former not in ("", uid_of(write.new)),
            f"deny this cluster ({DENIED_FOR})": denial_of(write.new) != denial_of(write.old),
            f"remove the annotation {BOUND_ONLY}": is_bound_only(write.old) and not is_bound_only(write.new),
            "give this cluster to one of its agents": given_to(write.new) is not None,
            "change a cluster that is not accepted": _is_agents(write) and write.old is not None and not _accepts(write.old),
        }
        for what, is_done in by_acceptance.items():
            if is_done and not self._may(write, "update", (self._groups.register, "managedclusters", "accept")):
                raise write.refusal(f'user "{write.actor.user}" cannot {what}')
        old, new = _cluster_set(write.old), _cluster_set(write.new)
        if old == DEFAULT and not new:  # the cluster stays in the set `default`
            new = old
        for changed in (old, new) if old != new else ():
            joins = (self._groups.clusters, "managedclustersets", "join")
            if changed and not self._may(write, "create", joins, changed):
                raise write.refusal(
                    f'user "{write.actor.user}" cannot add/remove a ManagedCluster to/from ManagedClusterSet "{changed}"'
                )

    def _binding(self, write: Admission) -> None:
        bound = str(doc.mapping(write.new, "spec").get("clusterSet", ""))
        binds = (self._groups.clusters, "managedclustersets", "bind")
        if write.old is None and not self._may(write, "create", binds, bound):
            raise write.refusal(f'user "{write.actor.user}" is not allowed to bind cluster set "{bound}"')

    def _addon(self, write: Admission) -> None:
        if write.old is not None and _is_agents(write) and not leaves_registrations_unchanged(write.new, write.old):
            raise write.refusal("an agent may change only the driver in status.registrations")

    def _request(self, write: Admission) -> None:
        if write.old is None:
            self._check_attested(write)
            _check_own(write, doc.labels(write.new).get(CLUSTER_LABEL, ""))
            return
        if _conditions(write.old, decisions=True) != _conditions(write.new, decisions=True):
            self._check_signer(write, "approve")
        if _issued(write.old) != _issued(write.new):
            self._check_signer(write, "sign")

    def _rule(self, write: Admission) -> None:
        """Requires the rights that the rule would exercise."""
        if write.old is not None and write.old.get("spec") == write.new.get("spec"):
            return
        decides = doc.sequence(write.new, "spec", "decides")
        accepts = (self._groups.register, "managedclusters", "accept")
        if "Accept" in decides and not self._may(write, "update", accepts, "*"):
            raise write.refusal(
                f'user "{write.actor.user}" may not accept every cluster, so it may not write a rule that accepts clusters'
            )
        if "Approve" in decides:
            self._check_signer(write, "approve", SIGNER)

    def _credential(self, write: Admission) -> None:
        """Requires the rights over clusters that the credential would exercise."""
        joins, clusters = (self._groups.clusters, "managedclustersets", "join"), (self._groups.clusters, "managedclusters", "")
        cluster_set = str(doc.mapping(write.new, "spec").get("clusterSet") or "")
        if cluster_set and not self._may(write, "create", joins, cluster_set):
            raise write.refusal(f'user "{write.actor.user}" cannot add a ManagedCluster to ManagedClusterSet "{cluster_set}"')
        if doc.mapping(write.new, "spec", "labels") and not self._may(write, "update", clusters, "*"):
            raise write.refusal(
                f'user "{write.actor.user}" may not label every cluster, so it may not create a credential with labels'
            )

    def _authenticator(self, write: Admission) -> None:
        """An authenticator can return any user, so its author must be allowed to impersonate all users and groups."""
        if write.old is not None and write.old.get("spec") == write.new.get("spec"):
            return
        for named in ("users", "groups"):
            if not self._may(write, "impersonate", ("", named, ""), "*"):
                raise write.refusal(
                    f'user "{write.actor.user}" may not impersonate all {named}, so it may not write an authenticator'
                )

    def _check_attested(self, write: Admission) -> None:
        standing = caller_record_of(write.actor.holder)
        if self._attests and standing is not None and standing.purpose is Purpose.BOOTSTRAP:
            raise AttestationError("this hub requires an attestation for every first registration: register at the gRPC door")

    def _check_signer(self, write: Admission, verb: str, signer: str = "") -> None:
        signer = signer or str(doc.mapping(write.new, "spec").get("signerName", ""))
        signers = (CSRS, "signers", "")
        names = (signer, f"{signer.partition('/')[0]}/*")
        if not any(self._may(write, verb, signers, name) for name in names):
            raise write.refusal(f'user not permitted to {verb} requests with signerName "{signer}"')

    def _may(self, write: Admission, verb: str, what: tuple[str, str, str], name: str = "") -> bool:
        group, resource, part = what
        asked = Attributes(verb, "", group, "v1", resource, part, name=name or write.key.name)
        return self._decide(write.actor, asked).allowed


def _is_agents(write: Admission) -> bool:
    standing = caller_record_of(write.actor.holder)
    return standing is not None and standing.purpose in (Purpose.AGENT, Purpose.ADDON, Purpose.BOOTSTRAP)


def _check_holds(write: Admission) -> None:
    """Raises ForbiddenError if the write changes finalizers or ownerReferences. Agents must not block or cause deletions."""
    before, after = (doc.mapping(each or {}, "metadata") for each in (write.old, write.new))
    for field in ("finalizers", "ownerReferences"):
        if (before.get(field) or []) != (after.get(field) or []):
            raise write.refusal(f"an agent does not change metadata.{field}")


def _check_own(write: Admission, cluster: str) -> None:
    standing = caller_record_of(write.actor.holder)
    if standing is not None and standing.cluster is not None and cluster not in ("", standing.cluster):
        raise write.refusal(f'the credential is for cluster "{standing.cluster}" and cannot act for cluster "{cluster}"')


def _accepts(cluster: Document | None) -> bool:
    return cluster is not None and doc.mapping(cluster, "spec").get("hubAcceptsClient") is True


def _cluster_set(cluster: Document | None) -> str:
    return doc.labels(cluster).get(LABEL, "") if cluster is not None else ""


def _issued(request: Document) -> tuple[str, list[Mapping[str, Any]]]:
    return str(doc.mapping(request, "status").get("certificate") or ""), _conditions(request, decisions=False)


def _conditions(request: Document, *, decisions: bool) -> list[Mapping[str, Any]]:
    return [entry for entry in doc.conditions(request) if (entry.get("type") in DECISIONS) is decisions]
