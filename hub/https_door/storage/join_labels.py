"""Labels of registering clusters at the HTTPS door: as at the gRPC door, only those of `--join-labels`."""

from dataclasses import dataclass

from hub.api.managedclusters.admission import permitted_join_labels
from hub.api.meta import document as doc
from machinery.apiserver.storage import Actor, GroupResource, Storage
from machinery.apiserver.storages.layers import Admission, Admit, AdmittedStorage
from machinery.identity import parse_bootstrap_user
from machinery.meta.objects import Document, Key, StoredObject


@dataclass(frozen=True, slots=True)
class JoinLabels:
    """`listed`: keys, or prefix/* for all keys with a prefix. `clusters`: the resource to which it applies."""

    clusters: GroupResource
    listed: tuple[str, ...] = ()


class NewcomersStorage(AdmittedStorage):
    """Removes labels that are not listed from clusters that a bootstrap credential creates."""

    def __init__(self, inner: Storage, admit: Admit, labels: JoinLabels) -> None:
        super().__init__(inner, admit)
        self._judge = admit
        self._labels = labels

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        is_newcomer = resource == self._labels.clusters and parse_bootstrap_user(actor.user) is not None
        if is_newcomer and doc.labels(document):
            self._judge(Admission(resource, key, document, None, actor))  # forbidden labels are refused, not removed
            document = doc.with_metadata(document, labels=permitted_join_labels(doc.labels(document), self._labels.listed))
        return await super().create(resource, key, document, actor, dry_run=dry_run)
