"""BootstrapCredential, a kind of this project: a short-lived credential for joining.

Only the response to its creation contains the credential. Usually it is a certificate for the creator's certificate request, so
that the private key stays with the creator. For clients that support only tokens, the hub creates a token and stores its hash.
"""

from functools import partial

import msgspec

from hub.api import managedclustersets as sets
from hub.api.bootstrapcredentials import DELETED, CredentialRecord, UseCount
from hub.api.certificates import Lifetimes
from hub.api.meta import document as doc
from hub.api.meta.change import CLUSTER_SETS
from hub.ports import Store, Transaction
from hub.ports.identities import Issuer
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.bootstrapcredentials.documents import AdvertisedAddress, CredentialView, DemandFlaws, read_request, shown
from hub.registry.bootstrapcredentials.service import CredentialTerms
from hub.registry.generic import declared
from hub.registry.generic.definition import ResourceDefinition
from hub.registry.generic.virtual import DryRun, VirtualStorage, not_found
from machinery.apiserver.resource import TableRow
from machinery.apiserver.storage import Actor, GroupResource, UpdateFunc
from machinery.errors import InvalidError, MethodNotAllowedError
from machinery.identity import CredentialId
from machinery.meta.objects import Document, Key, Page, Query, StoredObject


def _clusters(row: TableRow) -> str:
    spec = doc.mapping(row.document, "spec")
    return str(spec.get("clusterName") or ",".join(map(str, spec.get("clusterNames") or ())) or "<any>")


def _uses(row: TableRow) -> str:
    status = doc.mapping(row.document, "status")
    return f"{status.get('usesSpent', 0)}/{doc.mapping(row.document, 'spec').get('uses', '-')}"


def _labels(row: TableRow) -> str:
    labels = doc.mapping(row.document, "spec", "labels")
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>"


BOOTSTRAP_CREDENTIAL = ResourceDefinition(
    declared("bootstrapcredentials.hub", {"Cluster": _clusters, "Uses": _uses, "Labels": _labels}), stored=False
)


_encode = msgspec.json.Encoder().encode


class CredentialStorage(VirtualStorage):
    """Credentials of the store as objects, which cannot be changed or watched.

    A deletion revokes a credential. The store keeps its record for some time, but the API no longer shows it.
    """

    def __init__(
        self,
        store: Store,
        issuer: Issuer,
        address: AdvertisedAddress,
        lifetimes: Lifetimes,
        version: str,
        *,
        flaws: DemandFlaws,
    ) -> None:
        super().__init__(store, version)
        self._flaws = flaws
        self._issuer = issuer
        self._address = address
        self._lifetimes = lifetimes

    async def get(self, resource: GroupResource, key: Key) -> StoredObject:
        return self._stored(await self._store.read(_find_view, resource, key))

    async def list(self, resource: GroupResource, query: Query) -> Page:
        del resource
        views = sorted(await self._store.read(_all_views), key=lambda view: view.record.id)
        revision = await self.revision()
        items = [self._stored(view) for view in views if query.matches(Key("", str(view.record.id)), {}, {})]
        left = [item for item in items if query.after is None or item.key > query.after]
        chosen = tuple(left[: query.limit])
        rest = len(left) - len(chosen)
        return Page(chosen, revision, chosen[-1].key if rest else None, rest or None)

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        terms, public_key = read_request(resource, key, document, self._flaws, self._lifetimes.bootstrap)
        create = partial(
            _create, terms=terms, public_key=public_key, issuer=self._issuer, lifetimes=self._lifetimes, actor=actor.user
        )
        try:
            return self._stored(await self._store.run(create, dry_run=document if dry_run else None))
        except DryRun as seen:
            return StoredObject(key, 0, _encode(seen.document))

    async def update(
        self, resource: GroupResource, key: Key, change: UpdateFunc, actor: Actor, *, dry_run: bool = False
    ) -> StoredObject:
        stored = await self.get(resource, key)
        new = change(stored.document)
        if new is not None and new != stored.document:
            raise MethodNotAllowedError("a bootstrap credential cannot be changed: delete it and create another one")
        if new is None and not dry_run:
            await self._store.run(credentials.revoke, CredentialId(key.name), actor.user, DELETED)
        return stored

    def _stored(self, view: CredentialView) -> StoredObject:
        document = shown(view, self._address, self._issuer.trust_bundle, self._api_version)
        return StoredObject(Key("", view.record.id), view.revision, _encode(document))


def _create(
    tx: Transaction,
    *,
    terms: CredentialTerms,
    public_key: bytes | None,
    issuer: Issuer,
    lifetimes: Lifetimes,
    actor: str,
    dry_run: Document | None,
) -> CredentialView:
    """Create the credential. Raises InvalidError if its set does not exist or clusters cannot be assigned to the set."""
    if (name := terms.bounds.cluster_set) is not None:
        stored = tx.objects.get(CLUSTER_SETS, Key("", name))
        found = sets.cluster_set(stored.document) if stored is not None else None
        if found is None:
            raise InvalidError(f'spec.clusterSet: there is no ManagedClusterSet "{name[:80]}": create it first')
        if not found.is_exclusive:
            raise InvalidError(f'spec.clusterSet: "{name}" selects clusters by other labels, so none can be assigned to it')
    if public_key is None:
        record, token = credentials.create_token(tx, terms, actor)
        secret = {"token": token}
    else:
        record, issued = credentials.create(tx, terms, public_key, issuer, lifetimes=lifetimes, actor=actor)
        secret = {"certificate": issued.chain.decode("ascii")}
    if dry_run is not None:
        raise DryRun(dry_run)
    return CredentialView(record, UseCount(), (), (), tx.now, tx.changes.newest(), secret)


def _find_view(tx: Transaction, resource: GroupResource, key: Key) -> CredentialView:
    record = tx.credentials.by_id(CredentialId(key.name))
    if record is None or record.is_hidden:
        not_found(resource, key)
    return _view(tx, record, tx.credentials.tally(record.id), tx.changes.newest())


def _all_views(tx: Transaction) -> list[CredentialView]:
    newest, use_counts = tx.changes.newest(), tx.credentials.use_counts()
    listed = [record for record in tx.credentials.all() if not record.is_hidden]
    return [_view(tx, record, use_counts.get(record.id, UseCount()), newest) for record in listed]


def _view(tx: Transaction, record: CredentialRecord, tally: UseCount, revision: int) -> CredentialView:
    admitted = sorted(tx.credentials.admitted(record.id)) if tally.taken else ()
    uses = tx.credentials.uses(record.id) if tally.issued or tally.held else ()
    return CredentialView(record, tally, admitted, uses, tx.now, revision)
