"""BootstrapCredentials: certificates or bearer tokens, returned at their creation only.

A certificate is issued for a certificate request, so that the private key stays with the creator. A token is made by the hub,
for clients that support no other credential; the hub stores its hash.
"""

from datetime import timedelta

import msgspec

from hub.api import managedclustersets as sets
from hub.api.bootstrapcredentials import DELETED, CredentialRecord, UseCount
from hub.api.certificates import Lifetimes
from hub.api.meta.change import CLUSTER_SETS
from hub.api.meta.change import Key as StoreKey
from hub.https_door.storage.storage import DryRun, not_found
from hub.https_door.storage.virtual import VirtualStorage
from hub.https_door.virtual.bootstrapcredential_documents import (
    KIND,
    AdvertisedAddress,
    CredentialView,
    Reading,
    RequestedCredential,
    shown,
)
from hub.ports import Issuer, Store, Transaction
from hub.registry.bootstrapcredentials import service as credentials
from hub.registry.bootstrapcredentials.service import CredentialTerms
from machinery.apiserver.authn.https_json import AllowedUrls
from machinery.apiserver.storage import Actor, Change, Document, GroupResource, Key, Page, Selection, Stored
from machinery.errors import InvalidError, MethodNotAllowedError
from machinery.identity import CredentialId

__all__ = ["KIND", "AdvertisedAddress", "CredentialStorage"]

_encode = msgspec.json.Encoder().encode


class CredentialStorage(VirtualStorage):
    """Credentials of the store as objects. They cannot be changed or watched.

    Deletion revokes a credential: its record is kept for some time and not shown.
    """

    def __init__(
        self,
        store: Store,
        issuer: Issuer,
        address: AdvertisedAddress,
        lifetimes: Lifetimes,
        api_version: str,
        *,
        allowed: AllowedUrls,
    ) -> None:
        """`allowed`: issuers that a credential may name without their keys."""
        self._allowed = allowed
        super().__init__(store, api_version)
        self._issuer = issuer
        self._address = address
        self._lifetimes = lifetimes

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        return self._stored(await self._store.read(_look, resource, key))

    async def list(
        self,
        resource: GroupResource,
        selection: Selection,
        *,
        limit: int | None = None,
        after: Key | None = None,
        at: int | None = None,
    ) -> Page:
        del resource, at
        sights = sorted(await self._store.read(_look_at_all), key=lambda sight: sight.record.id)
        revision = await self.revision()
        items = [self._stored(sight) for sight in sights if _selected(sight, selection)]
        left = [item for item in items if after is None or item.key > after]
        chosen = tuple(left if limit is None else left[:limit])
        rest = len(left) - len(chosen)
        return Page(chosen, revision, chosen[-1].key if rest else None, rest or None)

    async def create(
        self, resource: GroupResource, key: Key, document: Document, actor: Actor, *, dry_run: bool = False
    ) -> Stored:
        asked = Reading(resource, key, document, self._allowed).asked()
        try:
            sight = await self._store.run(_create, asked, self._issuer, self._lifetimes, actor, dry_run=dry_run)
        except DryRun as seen:
            return Stored(key, 0, _encode(seen.document))
        return self._stored(sight)

    async def update(self, resource: GroupResource, key: Key, change: Change, actor: Actor, *, dry_run: bool = False) -> Stored:
        stored = await self.get(resource, key)
        document = msgspec.json.decode(stored.document)
        new = change(document)
        if new == document:
            return stored
        if new is not None:
            raise MethodNotAllowedError("a bootstrap credential does not change: delete it and make another")
        if not dry_run:
            await self._store.run(credentials.revoke, CredentialId(key.name), actor.user, DELETED)
        return stored

    def _stored(self, sight: CredentialView) -> Stored:
        document = shown(sight, self._address, self._issuer.trust_bundle, self._api_version)
        return Stored(Key("", sight.record.id), sight.revision, _encode(document))


def _create(
    tx: Transaction, asked: RequestedCredential, issuer: Issuer, lifetimes: Lifetimes, actor: Actor, *, dry_run: bool
) -> CredentialView:
    _check_set(tx, asked.bounds.cluster_set)
    lifetime = timedelta(seconds=asked.seconds) if asked.seconds is not None else lifetimes.bootstrap
    if asked.public_key is None:
        record, token = credentials.create_token(
            tx, CredentialTerms(asked.cluster, asked.uses, lifetime, asked.bounds), actor.user
        )
        told = {"token": token}
    else:
        record, issued = credentials.create(
            tx,
            cluster=asked.cluster,
            uses=asked.uses,
            lifetime=lifetime,
            public_key=asked.public_key,
            issuer=issuer,
            lifetimes=lifetimes,
            actor=actor.user,
            bounds=asked.bounds,
        )
        told = {"certificate": issued.chain.decode("ascii")}
    if dry_run:
        raise DryRun(asked.document)
    return CredentialView(record, UseCount(), (), (), tx.now, tx.changes.newest(), told)


def _check_set(tx: Transaction, name: str | None) -> None:
    """Raises InvalidError unless the set exists and clusters can be assigned to it."""
    if name is None:
        return
    stored = tx.objects.get(CLUSTER_SETS, StoreKey("", name))
    found = sets.cluster_set(stored.document) if stored is not None else None
    if found is None:
        raise InvalidError(f'spec.clusterSet: there is no ManagedClusterSet "{name[:80]}": make it first')
    if not found.is_exclusive:
        raise InvalidError(f'spec.clusterSet: clusters are in the set "{name}" by their labels, and not by being put into it')


def _look(tx: Transaction, resource: GroupResource, key: Key) -> CredentialView:
    record = tx.credentials.by_id(CredentialId(key.name))
    if record is None or record.is_hidden:
        not_found(resource, key)
    return _sight(tx, record, tx.credentials.tally(record.id), tx.changes.newest())


def _look_at_all(tx: Transaction) -> list[CredentialView]:
    newest, tallies = tx.changes.newest(), tx.credentials.tallies()
    shown_ones = [record for record in tx.credentials.all() if not record.is_hidden]
    return [_sight(tx, record, tallies.get(record.id, UseCount()), newest) for record in shown_ones]


def _sight(tx: Transaction, record: CredentialRecord, tally: UseCount, revision: int) -> CredentialView:
    admitted = sorted(tx.credentials.admitted(record.id)) if tally.taken else ()
    uses = tx.credentials.uses(record.id) if tally.issued or tally.held else ()
    return CredentialView(record, tally, admitted, uses, tx.now, revision)


def _selected(sight: CredentialView, selection: Selection) -> bool:
    fields = {"metadata.name": str(sight.record.id), "metadata.namespace": ""}
    return selection.labels.matches({}) and selection.fields.matches(fields)
