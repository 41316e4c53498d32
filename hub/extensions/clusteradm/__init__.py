"""Support for OCM's command line `clusteradm`: bootstrap tokens, cluster-info, and the object by which it recognizes a hub.

Sources: clusteradm's pkg/cmd/{get/token,join,accept,delete/token} and pkg/helpers; docs/how-to/clusteradm.md.
"""

from dataclasses import replace
from uuid import NAMESPACE_OID, uuid5

from hub.composition.core import HubCore
from hub.extensions.clusteradm.cluster_info import CONFIG_MAPS, ClusterInfoReviewer, with_cluster_info
from hub.extensions.clusteradm.tokens import (
    SECRET_RESOURCE,
    SERVICE_ACCOUNT_RESOURCE,
    SecretStorage,
    TokenRequests,
    ensure_account,
)
from hub.extensions.settings import ClusteradmSettings
from hub.registry.namespaces import STARTING
from machinery.apiserver.storage import Actor, GroupResource
from machinery.apiserver.storages.memory import MemoryStorage
from machinery.errors import InvalidError
from machinery.meta.objects import Key

DEFINITIONS = GroupResource("apiextensions.k8s.io", "customresourcedefinitions")
CLUSTER_MANAGERS = "clustermanagers.operator.open-cluster-management.io"
NOTE = "clusteradm recognizes a hub by this name. This hub serves no ClusterManager."
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": CLUSTER_MANAGERS, "annotations": {"kubernetes.io/description": NOTE}},
    "spec": {
        "group": "operator.open-cluster-management.io",
        "names": {"kind": "ClusterManager", "listKind": "ClusterManagerList", "plural": "clustermanagers"},
        "scope": "Cluster",
        "versions": [],
    },
}


async def install(core: HubCore) -> None:
    """Add this support if `clusteradm` is set. Raises InvalidError if first registrations must be attested."""
    settings, context, changes = core.context.settings, core.context, core.changes
    if not isinstance(settings, ClusteradmSettings) or not settings.clusteradm:
        return
    if core.attestation.required:
        raise InvalidError("clusteradm cannot be set with attestation=required: agents with its tokens cannot attest")
    store = core.resources.store
    await store.run(ensure_account)
    own_group = f"hub.{settings.api_group_suffix}"
    tokens = TokenRequests(store, context.lifetimes.bootstrap, settings.clusteradm_token_uses or None, own_group)
    definitions = MemoryStorage(clock=context.clock, uid=lambda _resource, key: str(uuid5(NAMESPACE_OID, key.name)))
    await definitions.create(DEFINITIONS, Key("", CLUSTER_MANAGERS), DEFINITION, Actor(STARTING))
    is_public = settings.clusteradm_public_cluster_info
    changes.authorizers.append(lambda own: ClusterInfoReviewer(own, is_public=is_public))
    changes.resources[SERVICE_ACCOUNT_RESOURCE] = tokens.change
    changes.resources[SECRET_RESOURCE] = lambda secrets, objects, _: replace(secrets, storage=SecretStorage(objects))
    changes.resources[DEFINITIONS] = lambda resource, _objects, _authorizer: replace(resource, storage=definitions)
    changes.resources[CONFIG_MAPS] = lambda maps, objects, _: with_cluster_info(maps, objects, core.certificates)
