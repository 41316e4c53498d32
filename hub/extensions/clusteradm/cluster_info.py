"""The ConfigMaps from which `clusteradm join` takes the hub's CA. Each read computes them, so they have the current CA.

kube-public/cluster-info contains a kubeconfig with only the server and its CA, as in kubeadm. `join --grpc-server` reads
ca-bundle-configmap in the hub's namespace, which has the CA alone.
"""

from base64 import b64encode
from dataclasses import replace
from datetime import datetime
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.access.rights import caller_record_of
from hub.api.certificates import Purpose
from hub.api.namespaces import HUB
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
COMPUTED = CLUSTER_INFO, CA_BUNDLE = Key("kube-public", "cluster-info"), Key(HUB, "ca-bundle-configmap")


class ClusterInfoStorage(DelegatingStorage):
    """Storage of all ConfigMaps. It computes those in `COMPUTED`, and hides stored ConfigMaps with the same names."""

    def __init__(self, objects: Storage, certificates: CertificateSection) -> None:
        super().__init__(objects)
        self._certificates = certificates

    @property
    def portion(self) -> int | None:
        return None

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        return self._computed(await self.revision())[key] if key in COMPUTED else await super().get(resource, key)

    async def list(self, resource: GroupResource, query: Query) -> Page:
        page = await super().list(resource, query)
        computed = self._computed(page.revision)
        stored = replace(page, items=tuple(each for each in page.items if each.key not in COMPUTED))
        left = [key for key in COMPUTED if query.after is None or query.after < key]
        return merged(stored, [computed[key] for key in left if query.matches(key, {}, {})], query.limit)

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

    def _computed(self, revision: int) -> dict[Key, StoredObject]:
        server, trust = self._certificates.cluster.server, self._certificates.issuer.trust_bundle
        cluster = {"server": server, "certificate-authority-data": b64encode(trust).decode("ascii")}
        nobody = {"contexts": [], "current-context": "", "preferences": {}, "users": []}
        kubeconfig = {"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "", "cluster": cluster}], **nobody}
        contents = {
            CLUSTER_INFO: {"kubeconfig": msgspec.json.encode(kubeconfig).decode()},
            CA_BUNDLE: {"ca-bundle.crt": trust.decode("ascii")},
        }
        computed = {}
        for key, data in contents.items():
            uid = str(uuid5(NAMESPACE_OID, f"{server}/{key}"))
            metadata = {"name": key.name, "namespace": key.namespace, "uid": uid, "resourceVersion": str(revision)}
            document = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            computed[key] = StoredObject(key, revision, msgspec.json.encode(document))
        return computed


def with_cluster_info(resource: Resource, objects: Storage, certificates: CertificateSection) -> Resource:
    """Return the resource of ConfigMaps, with the ConfigMaps in `COMPUTED`. Reads of the past return these as they are now."""
    changed, own = replace(resource, storage=ClusterInfoStorage(objects, certificates)), resource.past
    if own is None:
        return changed

    async def past(asked: datetime | int) -> tuple[Storage, datetime]:
        storage, moment = await own(asked)
        return ClusterInfoStorage(storage, certificates), moment

    return replace(changed, past=past)


class ClusterInfoReviewer(Reviewer):
    """Allows bootstrap credentials to get the ConfigMaps in `COMPUTED`. `is_public`: allows all callers to get cluster-info."""

    def __init__(self, own: Reviewer, *, is_public: bool) -> None:
        self._own = own
        self._is_public = is_public

    async def authorize(self, actor: Actor, attributes: Attributes) -> Decision:
        asked, record = attributes, caller_record_of(actor.holder)
        is_get = (asked.verb, asked.group, asked.resource, asked.subresource) == ("get", "", CONFIG_MAPS.resource, "")
        joins = record is not None and record.purpose is Purpose.BOOTSTRAP
        readable = {CLUSTER_INFO: self._is_public or joins, CA_BUNDLE: joins}
        if is_get and readable.get(Key(asked.namespace, asked.name)):
            return ALLOWED
        return await self._own.authorize(actor, asked)

    async def rules(self, actor: Actor, namespace: str) -> HeldRules:
        return await self._own.rules(actor, namespace)


def _check_stored(key: Key) -> None:
    if key in COMPUTED:
        raise MethodNotAllowedError(f"the ConfigMap {key} is computed by the hub and cannot be written")
