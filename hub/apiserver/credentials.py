"""BootstrapCredentials at the door: created from a certificate request, shown without secrets, revoked by deletion.

The private key never reaches the hub: whoever creates a credential makes the key, sends the request and gets the certificate in
the answer's status. Later reads show the record: for whom, until when, how often it was used.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec

from hub.domain.certificate import IssuedCertificate, Lifetimes
from hub.domain.credential import CredentialRecord
from hub.ports import Issuer, Store, Transaction
from hub.services import credentials
from machinery import pki
from machinery.apiserver.storage import Actor, Change, Document, Event, GroupResource, Key, Page, Selection, Storage, Stored
from machinery.errors import InvalidError, MethodNotAllowedError, NotFoundError
from machinery.identity import ClusterName, CredentialId, HubId, cluster_name
from machinery.timestamps import format_time


@dataclass(frozen=True, slots=True)
class Entrance:
    """What a bootstrap kubeconfig says of this hub."""

    hub_id: HubId
    grpc_server: str
    """`host:port` as agents reach it."""
    https_server: str
    """`https://host:port` as tools reach it."""
    pod_addresses: tuple[str, ...] = ()
    """The addresses that this hub has as a pod: of no use outside its cluster."""


class CredentialStorage(Storage):
    """The records as objects of `bootstrapcredentials.hub.<suffix>`; the name is the credential's id."""

    def __init__(
        self,
        store: Store,
        issuer: Issuer,
        entrance: Callable[[], Entrance],
        lifetimes: Lifetimes,
        api_version: str,
    ) -> None:
        self._store = store
        self._issuer = issuer
        self._entrance = entrance
        self._lifetimes = lifetimes
        self._api_version = api_version

    async def get(self, resource: GroupResource, key: Key) -> Stored:
        for stored in (await self.list(resource, Selection())).items:
            if stored.key == key:
                return stored
        raise NotFoundError(f'{resource} "{key.name}" not found')

    async def list(
        self,
        resource: GroupResource,  # noqa: ARG002 - the port's signature
        selection: Selection,
        *,
        limit: int | None = None,  # noqa: ARG002 - there are few; all are one page
        after: Key | None = None,
        at: int | None = None,  # noqa: ARG002 - the records have no history
    ) -> Page:
        revision, found = await self._store.read(_all)
        items = [self._stored(record, uses) for record, uses in found]
        chosen = [
            item
            for item in sorted(items, key=lambda item: item.key)
            if (after is None or item.key > after) and selection.fields.matches({"metadata.name": item.key.name})
        ]
        return Page(tuple(chosen), revision)

    async def create(
        self,
        resource: GroupResource,  # noqa: ARG002 - the port's signature
        key: Key,  # noqa: ARG002 - the hub names credentials
        document: Document,
        actor: Actor,
        *,
        dry_run: bool = False,
    ) -> Stored:
        asked = _asked(document)
        if dry_run:
            raise InvalidError("a bootstrap credential cannot be rehearsed: its certificate would exist")
        record, issued = await self._store.run(_create, asked, self._issuer, self._lifetimes, actor.user)
        return self._stored(record, 0, issued)

    async def update(self, resource: GroupResource, key: Key, change: Change, actor: Actor, *, dry_run: bool = False) -> Stored:
        del actor
        stored = await self.get(resource, key)
        if change(msgspec.json.decode(stored.document)) is not None:
            raise MethodNotAllowedError("a bootstrap credential is made or revoked, never changed: delete it and make another")
        if not dry_run:
            await self._store.run(credentials.revoke, CredentialId(key.name))
        return stored

    def watch(
        self,
        resource: GroupResource,  # noqa: ARG002 - the port's signature
        selection: Selection,  # noqa: ARG002 - the port's signature
        *,
        after: int,  # noqa: ARG002 - the port's signature
    ) -> AbstractAsyncContextManager[AsyncIterator[Event | int]]:
        raise MethodNotAllowedError("bootstrap credentials cannot be watched: list them")

    async def revision(self) -> int:
        revision, _ = await self._store.read(_all)
        return revision

    async def wait_for(self, revision: int) -> None:
        """The records have no revisions of their own: nothing to wait for."""

    def _stored(self, record: CredentialRecord, uses: int, issued: IssuedCertificate | None = None) -> Stored:
        entrance = self._entrance()
        status: dict[str, Any] = {
            "expiresAt": format_time(record.expires_at),
            "usesSpent": uses,
            "createdBy": record.created_by,
            "hubID": entrance.hub_id,
            "grpcServer": entrance.grpc_server,
            "httpsServer": entrance.https_server,
            "certificateAuthority": self._issuer.trust_bundle.decode("ascii"),
        }
        if entrance.pod_addresses:
            status["podAddresses"] = list(entrance.pod_addresses)
        if record.revoked_at is not None:
            status["revokedAt"] = format_time(record.revoked_at)
        if issued is not None:
            status["certificate"] = issued.chain.decode("ascii")
        spec = {"clusterName": record.cluster, "uses": record.uses}
        document = {
            "apiVersion": self._api_version,
            "kind": "BootstrapCredential",
            "metadata": {
                "name": record.id,
                "uid": record.id,
                "creationTimestamp": format_time(record.created_at),
                "resourceVersion": "1",
            },
            "spec": {name: value for name, value in spec.items() if value is not None},
            "status": status,
        }
        return Stored(Key("", record.id), 1, msgspec.json.encode(document))


@dataclass(frozen=True, slots=True)
class _Asked:
    cluster: ClusterName | None
    uses: int | None
    lifetime: timedelta | None
    public_key: bytes


def _asked(document: Document) -> _Asked:
    """What `spec` asks for. Raises InvalidError."""
    spec: Mapping[str, Any] = document.get("spec") or {}
    request = spec.get("request")
    if not isinstance(request, str) or not request:
        raise InvalidError("spec.request is required: the PEM of a certificate signing request whose key stays with you")
    facts = pki.check_request(request.encode())
    name, seconds = spec.get("clusterName"), spec.get("expirationSeconds")
    return _Asked(
        cluster=cluster_name(name) if name else None,
        uses=spec.get("uses"),
        lifetime=timedelta(seconds=seconds) if seconds else None,
        public_key=facts.public_key,
    )


def _create(
    tx: Transaction, asked: _Asked, issuer: Issuer, lifetimes: Lifetimes, actor: str
) -> tuple[CredentialRecord, IssuedCertificate]:
    return credentials.create(
        tx,
        cluster=asked.cluster,
        uses=asked.uses,
        lifetime=asked.lifetime,
        public_key=asked.public_key,
        issuer=issuer,
        lifetimes=lifetimes,
        actor=actor,
    )


def _all(tx: Transaction) -> tuple[int, list[tuple[CredentialRecord, int]]]:
    found = [(record, len(tx.credentials.admitted(record.id))) for record in tx.credentials.all()]
    return tx.changes.newest(), found


def state(document: Document, now: datetime) -> str:
    """`Revoked`, `Expired`, `Used` or `Valid`: what a table says of a credential."""
    status = document.get("status") or {}
    uses = (document.get("spec") or {}).get("uses")
    if status.get("revokedAt"):
        return "Revoked"
    if str(status.get("expiresAt", "")) <= format_time(now):
        return "Expired"
    return "Used" if uses is not None and status.get("usesSpent", 0) >= uses else "Valid"
