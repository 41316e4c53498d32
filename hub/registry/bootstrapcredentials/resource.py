"""BootstrapCredential, a kind of this project: a short-lived credential for joining, returned at its creation only.

A certificate is issued for a certificate request, so that the private key stays with its creator. The hub creates a token for
clients that support no other credential, and stores its hash.
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
from hub.registry.generic.definition import ResourceDefinition, own_resource
from hub.registry.generic.schemas import FLAG, INT32, MOMENT, TEXT, TEXT_MAP, cell, described, listing, record
from hub.registry.generic.virtual import DryRun, VirtualStorage, not_found
from machinery.apiserver.resource import AGE, Column, TableRow
from machinery.apiserver.storage import Actor, GroupResource, UpdateFunc
from machinery.errors import InvalidError, MethodNotAllowedError
from machinery.identity import CredentialId
from machinery.meta.objects import Document, Key, Page, Query, StoredObject

_POSITIVE = {**INT32, "minimum": 1}
_ATTESTATION = record(
    "The first registration must present a ServiceAccount token of the managed cluster for this hub.",
    ("issuer",),
    issuer=described(TEXT, "Issuer of the cluster's tokens (claim iss)."),
    keys=described(TEXT, "Its keys as a JWKS document; absent: fetched from the issuer's discovery."),
    certificateAuthority=described(TEXT, "PEM of the CA of the issuer's server; absent: the CAs of the hub's machine."),
    audience=described(TEXT, "Required audience of the token; absent: urn:uuid:<the hub's id>."),
    subject=described(TEXT, "Pattern for the ServiceAccount: system:serviceaccount:<namespace>:<name>."),
)
_USE = record(
    "A use of the credential.",
    clusterName=described(TEXT, "The cluster."),
    agent=described(TEXT, "Id of the agent."),
    requestName=described(TEXT, "The CertificateSigningRequest."),
    heldSince=described(MOMENT, "When the request was created."),
    issuedAt=described(MOMENT, "When the certificate was issued; absent while the request waits."),
    serialNumber=described(TEXT, "Serial number of the certificate in hex."),
)
SCHEMA = record(
    "BootstrapCredential lets a cluster join. Create one with a certificate request, and the status of the response has the "
    "certificate; the private key stays with its creator. With `token` the hub creates a bearer token instead, for agents that "
    "use the Kubernetes API.",
    ("spec",),
    spec=record(
        "Form of the credential, the clusters that may use it, and its limits.",
        request=described(
            TEXT,
            "A certificate signing request in PEM; its subject is ignored. Required at creation without `token`; not stored.",
        ),
        token=described(FLAG, "Whether the credential is a bearer token for the HTTPS door."),
        clusterName=described(TEXT, "The only permitted cluster name."),
        clusterNames=listing(
            TEXT,
            description="Patterns for the whole name of a cluster, of which one must match; * is any text and ? one "
            "character. Without these and clusterName: any name.",
        ),
        clusterSet=described(
            TEXT,
            "The set that a joining cluster is added to. Accepted are new clusters, clusters of the set, and "
            "clusters created by an operator that have not joined and are in no set.",
        ),
        labels=described(TEXT_MAP, "Labels that a joining cluster gets; they replace those of its agent."),
        attestation=_ATTESTATION,
        uses=described(_POSITIVE, "Number of agents that may get a certificate with it; absent: no limit."),
        expirationSeconds=described(
            {**_POSITIVE, "maximum": 365 * 24 * 3600}, "Validity of the credential; if absent: the hub's default."
        ),
    ),
    status=record(
        "The state of the credential.",
        phase=described(TEXT, "Active, UsedUp, Expired or Revoked."),
        createdBy=described(TEXT, "User that created it."),
        expirationTimestamp=described(MOMENT, "When it expires."),
        revokedBy=described(TEXT, "User that revoked it."),
        revocationTimestamp=described(MOMENT, "When it was revoked."),
        revocationReason=described(TEXT, "Why it was revoked."),
        admittedClusters=listing(TEXT, description="Clusters that joined with it and have not been deleted."),
        usesSpent=described(INT32, "Number of agents that have got a certificate with it."),
        usesHeld=described(INT32, "Number of uses that are reserved for requests that wait for a decision."),
        uses=listing(_USE, description="The newest uses, oldest first."),
        certificate=described(TEXT, "The certificate in PEM, only in the response to the creation."),
        token=described(TEXT, "The bearer token, only in the response to the creation."),
        certificateAuthority=described(TEXT, "The hub's CA in PEM."),
        hubID=described(TEXT, "Id of the hub."),
        server=described(TEXT, "Advertised URL of the HTTPS door."),
        grpcServer=described(TEXT, "Advertised address of the gRPC door: host:port."),
    ),
)


def _clusters(row: TableRow) -> str:
    spec = doc.mapping(row.document, "spec")
    return str(spec.get("clusterName") or ",".join(map(str, spec.get("clusterNames") or ())) or "<any>")


def _uses(row: TableRow) -> str:
    status = doc.mapping(row.document, "status")
    return f"{status.get('usesSpent', 0)}/{doc.mapping(row.document, 'spec').get('uses', '-')}"


def _labels(row: TableRow) -> str:
    labels = doc.mapping(row.document, "spec", "labels")
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>"


_SET = cell("spec", "clusterSet", absent="<none>")
_ATTESTED = cell("spec", "attestation", "issuer", absent="<none>")
COLUMNS = (
    Column("Cluster", _clusters, description="Permitted cluster name, or patterns of names."),
    Column("Uses", _uses, description="Spent uses, and their largest number."),
    Column("Phase", cell("status", "phase"), description="Active, UsedUp, Expired or Revoked."),
    Column("Expires", cell("status", "expirationTimestamp"), description="End of its validity."),
    AGE,
    Column("Held", cell("status", "usesHeld", absent=0), description="Uses held for agents that wait.", priority=1),
    Column("Set", _SET, description="The set for clusters that join.", priority=1),
    Column("Labels", _labels, description="Labels for clusters that join.", priority=1),
    Column("Attested", _ATTESTED, description="The issuer whose token is required.", priority=1),
    Column("Created By", cell("status", "createdBy"), description="User that created it.", priority=1),
    Column("Revoked By", cell("status", "revokedBy", absent="<none>"), description="User that revoked it.", priority=1),
)


BOOTSTRAP_CREDENTIAL = ResourceDefinition(
    own_resource("bootstrapcredentials", "BootstrapCredential", SCHEMA, COLUMNS, verbs=("create", "delete", "get", "list")),
    stored=False,
)


_encode = msgspec.json.Encoder().encode


class CredentialStorage(VirtualStorage):
    """Credentials of the store as objects. They cannot be changed or watched.

    Deletion revokes a credential; its record is kept for some time and not shown.
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
    """Raises InvalidError if the set does not exist or clusters cannot be assigned to it."""
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
