"""The ConfigMap kube-public/cluster-info, from which `clusteradm join` takes the hub's CA.

As in kubeadm, it contains a kubeconfig with only the server and its CA. Each read computes it, so it has the current CA.
"""

from base64 import b64encode
from dataclasses import replace
from datetime import datetime
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.access.rights import caller_record_of
from hub.api.certificates import Purpose
from hub.composition.core import CertificateSection
from hub.https_door.storage.storage import DelegatingStorage
from hub.registry.generic.virtual import merged
from machinery.apiserver.access import Attributes, Decision
from machinery.apiserver.authz.rbac import ALLOWED, HeldRules
from machinery.apiserver.kinds.reviews import Reviewer
from machinery.apiserver.resource import Resource
from machinery.apiserver.storage import Actor, GroupResource, Storage, UpdateFunc
from machinery.errors import MethodNotAllowedError
from machinery.meta.objects import Document, Key, Page, Query, StoredObject

CONFIG_MAPS = GroupResource("", "configmaps")
CLUSTER_INFO = Key("kube-public", "cluster-info")


class ClusterInfoStorage(DelegatingStorage):
    """Storage of all ConfigMaps. It computes cluster-info, and hides a stored ConfigMap of this name."""

    def __init__(self, objects: Storage, certificates: CertificateSection) -> None:
        super().__init__(objects)
        self._certificates = certificates

    @property
    def portion(self) -> int | None:
        return None

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        return self._computed(await self.revision()) if key == CLUSTER_INFO else await super().get(resource, key)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        page = await super().list(resource, query)
        stored = replace(page, items=tuple(each for each in page.items if each.key != CLUSTER_INFO))
        is_next = query.after is None or query.after < CLUSTER_INFO
        is_selected = is_next and query.matches(CLUSTER_INFO, {}, {})
        return merged(stored, [self._computed(page.revision)] if is_selected else [], query.limit)

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        _check_stored(key)
        return await super().create(resource, key, document, actor, dry_run=dry_run)

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        _check_stored(key)
        return await super().update(resource, key, change, actor, dry_run=dry_run)

    def _computed(self, revision: int) -> StoredObject:
        server, trust = self._certificates.cluster.server, self._certificates.issuer.trust_bundle
        cluster = {"server": server, "certificate-authority-data": b64encode(trust).decode("ascii")}
        kubeconfig = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "", "cluster": cluster}],
            "contexts": [],
            "current-context": "",
            "preferences": {},
            "users": [],
        }
        metadata = {
            "name": CLUSTER_INFO.name,
            "namespace": CLUSTER_INFO.namespace,
            "uid": str(uuid5(NAMESPACE_OID, f"{server}/{CLUSTER_INFO}")),
            "resourceVersion": str(revision),
        }
        data = {"kubeconfig": msgspec.json.encode(kubeconfig).decode()}
        document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        return StoredObject(CLUSTER_INFO, revision, msgspec.json.encode(document))


def with_cluster_info(resource: Resource, objects: Storage, certificates: CertificateSection) -> Resource:
    """Return the resource of ConfigMaps with cluster-info. Reads of the past compute it too, so its history is not readable."""
    changed, own = replace(resource, storage=ClusterInfoStorage(objects, certificates)), resource.past
    if own is None:
        return changed

    async def past(asked: datetime | int) -> tuple[Storage, datetime]:
        storage, moment = await own(asked)
        return ClusterInfoStorage(storage, certificates), moment

    return replace(changed, past=past)


class ClusterInfoReviewer(Reviewer):
    """Allows bootstrap credentials (`is_public`: all callers) to get this ConfigMap. Asks `own` about other requests."""

    def __init__(self, own: Reviewer, *, is_public: bool) -> None:
        self._own = own
        self._is_public = is_public

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        asked, record = attributes, caller_record_of(actor.holder)
        is_info = (asked.verb, asked.group, asked.resource, asked.subresource) == ("get", "", CONFIG_MAPS.resource, "")
        joins = record is not None and record.purpose is Purpose.BOOTSTRAP
        if is_info and Key(asked.namespace, asked.name) == CLUSTER_INFO and (self._is_public or joins):
            return ALLOWED
        return await self._own.authorize(actor, asked)

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        return await self._own.rules(actor, namespace)


def _check_stored(key: Key) -> None:
    if key == CLUSTER_INFO:
        raise MethodNotAllowedError(f"the ConfigMap {key} is computed by the hub and cannot be written")
