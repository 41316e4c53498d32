"""BootstrapCredentials on the HTTPS door: certificates or bearer tokens, told at their creation and never again.

A certificate is made over a certificate request, so that the private key stays with the creator. A token is made by the hub,
for clients that know no other bootstrap credential; the hub keeps a hash of it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import NAMESPACE_OID, uuid5

import msgspec

from hub.apiserver.storage import DryRun, not_found
from hub.apiserver.virtual import VirtualStorage
from hub.domain import document as doc
from hub.domain.certificate import Lifetimes
from hub.domain.credential import CredentialRecord
from hub.ports import Issuer, Store, Transaction
from hub.services import credentials
from hub.services.credentials import Terms
from machinery import pki
from machinery.apiserver.storage import Actor, Change, Document, GroupResource, Key, Page, Selection, Stored
from machinery.errors import Cause, InvalidError, MethodNotAllowedError, Subject
from machinery.identity import CredentialId, HubId, cluster_name
from machinery.timestamps import format_time

KIND = "BootstrapCredential"
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class HubAddress:
    """How this hub is reached from outside, and which one it is: what goes into every kubeconfig."""

    hub_id: HubId
    server: str
    """`https://host:port` of the HTTPS door."""
    grpc_server: str
    """`host:port` of the door for agents."""


class CredentialStorage(VirtualStorage):
    """The credentials of the store as objects. There is nothing to change or watch in them.

    Deleting one revokes it: the record stays, and is shown no more.
    """

    def __init__(self, store: Store, issuer: Issuer, address: HubAddress, lifetimes: Lifetimes, api_version: str) -> None:
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
        asked = _asked(resource, key, document)
        try:
            sight = await self._store.run(_create, asked, self._issuer, self._lifetimes, actor, dry_run=dry_run)
        except DryRun as seen:
            return Stored(key, 0, _encode(seen.document))
        return self._stored(sight)

    async def update(self, resource: GroupResource, key: Key, change: Change, actor: Actor, *, dry_run: bool = False) -> Stored:
        del actor
        stored = await self.get(resource, key)
        document = msgspec.json.decode(stored.document)
        new = change(document)
        if new == document:
            return stored
        if new is not None:
            raise MethodNotAllowedError("a bootstrap credential does not change: delete it and make another")
        if not dry_run:
            await self._store.run(credentials.revoke, CredentialId(key.name))
        return stored

    def _stored(self, sight: "_Sight") -> Stored:
        return Stored(Key("", sight.record.id), sight.revision, _encode(self._document(sight)))

    def _document(self, sight: "_Sight") -> dict[str, Any]:
        record = sight.record
        spec: dict[str, Any] = {"expirationSeconds": round((record.expires_at - record.created_at).total_seconds())}
        if record.cluster is not None:
            spec["clusterName"] = record.cluster
        if record.uses is not None:
            spec["uses"] = record.uses
        if record.token_hash is not None:
            spec["token"] = True
        return {
            "apiVersion": self._api_version,
            "kind": KIND,
            "metadata": {
                "name": record.id,
                "uid": str(uuid5(NAMESPACE_OID, record.id)),
                "creationTimestamp": format_time(record.created_at),
                "resourceVersion": str(sight.revision),
            },
            "spec": spec,
            "status": {
                "phase": sight.phase,
                "createdBy": record.created_by,
                "expirationTimestamp": format_time(record.expires_at),
                "admittedClusters": list(sight.admitted),
                "hubID": self._address.hub_id,
                "server": self._address.server,
                "grpcServer": self._address.grpc_server,
                "certificateAuthority": self._issuer.trust_bundle.decode("ascii"),
                **sight.told,
            },
        }


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a creator asks for, read strictly."""

    public_key: bytes | None
    """None: a token is asked for."""
    spec: Mapping[str, Any]
    document: Document


@dataclass(frozen=True, slots=True)
class _Sight:
    """A credential as it stands. `told`: what of the status is told once, in the answer to the creation."""

    record: CredentialRecord
    admitted: tuple[str, ...]
    now: datetime
    revision: int
    told: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def phase(self) -> str:
        record = self.record
        if self.now >= record.expires_at:
            return "Expired"
        return "UsedUp" if record.uses is not None and len(self.admitted) >= record.uses else "Active"


def _asked(resource: GroupResource, key: Key, document: Document) -> _Asked:
    prefix = doc.mapping(document, "metadata").get("generateName")
    if not prefix or not key.name.startswith(str(prefix)):
        cause = Cause("FieldValueForbidden", "Forbidden: the hub names credentials: use generateName", "metadata.name")
        raise _invalid(resource, key, cause)
    spec = doc.mapping(document, "spec")
    wants_token = bool(spec.get("token"))
    if wants_token and spec.get("request"):
        cause = Cause("FieldValueForbidden", "Forbidden: a credential is a certificate or a token", "spec.request")
        raise _invalid(resource, key, cause)
    public_key = None if wants_token else pki.check_request(str(spec.get("request") or "").encode()).public_key
    if name := spec.get("clusterName"):
        try:
            cluster_name(str(name))
        except InvalidError as error:
            raise _invalid(resource, key, Cause("FieldValueInvalid", error.message, "spec.clusterName")) from None
    return _Asked(public_key, spec, document)


def _invalid(resource: GroupResource, key: Key, cause: Cause) -> InvalidError:
    subject = Subject(name=key.name, group=resource.group, kind=KIND)
    text = f'{KIND}.{resource.group} "{key.name}" is invalid: {cause.field}: {cause.message}'
    return InvalidError(text, subject=subject, causes=[cause])


def _create(tx: Transaction, asked: _Asked, issuer: Issuer, lifetimes: Lifetimes, actor: Actor, *, dry_run: bool) -> _Sight:
    name, seconds = asked.spec.get("clusterName"), asked.spec.get("expirationSeconds")
    cluster = cluster_name(name) if name else None
    lifetime = timedelta(seconds=seconds) if seconds is not None else lifetimes.bootstrap
    if asked.public_key is None:
        record, token = credentials.create_token(tx, Terms(cluster, asked.spec.get("uses"), lifetime), actor.user)
        told = {"token": token}
    else:
        record, issued = credentials.create(
            tx,
            cluster=cluster,
            uses=asked.spec.get("uses"),
            lifetime=lifetime,
            public_key=asked.public_key,
            issuer=issuer,
            lifetimes=lifetimes,
            actor=actor.user,
        )
        told = {"certificate": issued.chain.decode("ascii")}
    if dry_run:
        raise DryRun(asked.document)
    return _Sight(record, (), tx.now, tx.changes.newest(), told)


def _look(tx: Transaction, resource: GroupResource, key: Key) -> _Sight:
    record = tx.credentials.by_id(CredentialId(key.name))
    if record is None or record.revoked_at is not None:
        not_found(resource, key)
    return _Sight(record, tuple(sorted(tx.credentials.admitted(record.id))), tx.now, tx.changes.newest())


def _look_at_all(tx: Transaction) -> list[_Sight]:
    newest = tx.changes.newest()
    present = [record for record in tx.credentials.all() if record.revoked_at is None]
    return [_Sight(one, tuple(sorted(tx.credentials.admitted(one.id))), tx.now, newest) for one in present]


def _selected(sight: _Sight, selection: Selection) -> bool:
    fields = {"metadata.name": str(sight.record.id), "metadata.namespace": ""}
    return selection.labels.matches({}) and selection.fields.matches(fields)
