"""The hub's own resources, and the write paths of all stored kinds. The database has no objects of other kinds."""

from collections.abc import Mapping
from dataclasses import replace

from hub.api.meta import change
from hub.api.meta.change import Kind
from hub.registry import (
    auditrecords,
    authenticators,
    clusterdiagnoses,
    clusterprofiles,
    clusterroles,
    clustersummaries,
    clustertransitions,
    consolesessions,
    core,
    managedclustersets,
    namespaces,
    revocations,
)
from hub.registry.approvalrules import service as approvalrules
from hub.registry.bootstrapcredentials import resource as bootstrapcredentials
from hub.registry.certificateauthorities import resource as certificateauthorities
from hub.registry.certificatesigningrequests import service as requests
from hub.registry.generic.definition import ResourceDefinition, WritePath
from hub.registry.hubreplicas import resource as hubreplicas
from hub.registry.managedclusteraddons import resource as managedclusteraddons
from hub.registry.managedclusters import resource as managedclusters
from machinery.apiserver.storage import GroupResource

DEFINITIONS: tuple[ResourceDefinition, ...] = (
    # a write may revoke agents of the cluster; a deletion may revoke its bootstrap credentials
    replace(managedclusters.MANAGED_CLUSTER, put=revocations.put_cluster, remove=revocations.remove_cluster),
    managedclustersets.MANAGED_CLUSTER_SET,
    managedclustersets.MANAGED_CLUSTER_SET_BINDING,
    managedclusteraddons.MANAGED_CLUSTER_ADD_ON,
    managedclusteraddons.CLUSTER_MANAGEMENT_ADD_ON,
    managedclusteraddons.ADD_ON_PLACEMENT_SCORE,
    clusterprofiles.CLUSTER_PROFILE,
    approvalrules.APPROVAL_RULE,
    bootstrapcredentials.BOOTSTRAP_CREDENTIAL,
    revocations.REVOCATION,
    certificateauthorities.CERTIFICATE_AUTHORITY,
    authenticators.CREDENTIAL_ISSUER,
    clustersummaries.CLUSTER_SUMMARY,
    hubreplicas.CLUSTER_SESSION,
    hubreplicas.HUB_REPLICA,
    clusterdiagnoses.CLUSTER_DIAGNOSIS,
    hubreplicas.HUB_LEADER,
    clustertransitions.CLUSTER_TRANSITION,
    authenticators.JWT_AUTHENTICATOR,
    authenticators.WEBHOOK_AUTHENTICATOR,
    consolesessions.CONSOLE_SESSION,
    auditrecords.AUDIT_RECORD,
)
"""The hub's own resources, in the order in which their API groups are served."""

_KUBERNETES = (
    WritePath(change.REQUESTS, requested=requests.put, custom_remove=requests.remove),
    WritePath(change.LEASES, namespaced=True, custom_put=core.put_lease, custom_remove=core.remove_lease),
    WritePath(change.NAMESPACES, custom_put=namespaces.put, custom_remove=namespaces.remove),
    WritePath(change.CONFIG_MAPS, namespaced=True),
    WritePath(change.EVENTS, namespaced=True),
    WritePath(change.SECRETS, namespaced=True),
    WritePath(change.SERVICE_ACCOUNTS, namespaced=True, custom_put=core.put_account, custom_remove=core.remove_account),
    WritePath(change.CLUSTER_ROLES, custom_put=clusterroles.put_cluster_role, custom_remove=clusterroles.remove_cluster_role),
    WritePath(change.CLUSTER_ROLE_BINDINGS),
    WritePath(change.ROLES, namespaced=True),
    WritePath(change.ROLE_BINDINGS, namespaced=True),
)
"""Resources of Kubernetes, whose schemas are in `machinery.apiserver.kinds`."""

WRITE_PATHS: Mapping[Kind, WritePath] = {
    path.kind: path for path in (*_KUBERNETES, *(each.write_path for each in DEFINITIONS if each.stored))
}


def write_paths(suffix: str) -> dict[GroupResource, WritePath]:
    return {path.resource(suffix): path for path in WRITE_PATHS.values()}
