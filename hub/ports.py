"""What the hub's use cases and edges need of the world, as protocols. Adapters implement them; `app.py` introduces them.

The store is split by subject so that a use case names what it touches. Everything on a `Transaction` is synchronous and runs on
a pool thread; `Store` is the asynchronous edge around it.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from hub.domain.certificate import CertificateRecord, IssuedCertificate, Profile
from hub.domain.chain import AuditQuery, Head, Link
from hub.domain.change import Change, Key, Kind, ObjectPage, Query, StoredObject
from hub.domain.credential import CredentialRecord
from hub.domain.hearing import Mark
from hub.domain.heartbeat import Beat, LastBeat
from hub.domain.replica import AgentSession, Replica
from hub.domain.transition import Transition
from machinery.election.lock import Candidate, Record
from machinery.identity import AgentId, ClusterName, CredentialId, SerialNumber

P = ParamSpec("P")
T = TypeVar("T")


class Written(Protocol):
    """An object that a transaction will have written; its revision and bytes exist once the transaction has committed."""

    @property
    def stored(self) -> StoredObject:
        """The object as committed. Raises RuntimeError before the commit."""


class Objects(Protocol):
    """Kubernetes-style documents of every kind, with their change log. Only `hub.services` writes here."""

    def get(self, kind: Kind, key: Key) -> StoredObject | None:
        """The object, this transaction's own writes included."""

    def find(self, kind: Kind, query: Query) -> ObjectPage: ...

    def put(self, kind: Kind, new: dict[str, Any], old: StoredObject | None, actor: str) -> Written:
        """Stores `new`, guarded by the revision of `old` (None: must not exist yet). Raises ConflictError, AlreadyExistsError.

        Selectable fields are taken from the document by the kind's declaration (`hub.domain.change.SELECTABLE`). The change-log
        row and the next revision are written at the end of the transaction.
        """

    def delete(self, kind: Kind, old: StoredObject, actor: str) -> Written: ...

    def count(self, kind: Kind, query: Query) -> int:
        """How many objects a query chooses, this transaction's own writes included. Its limit and revision do not count."""

    def tally(self, kind: Kind, field: str) -> Mapping[str, int]:
        """How many objects of a kind have each value of a selectable field; "" stands for those that lack it."""

    def written_before(self, kind: Kind, moment: datetime, limit: int) -> Sequence[StoredObject]:
        """Objects that were last written before `moment`, the first `limit` in the order of their revisions."""


class Changes(Protocol):
    """The change log."""

    def since(self, revision: int, *, kinds: Collection[Kind] | None = None, limit: int = 500) -> Sequence[Change]:
        """Changes above `revision`, in order. Raises ExpiredError when they are compacted."""

    def of(self, kind: Kind, key: Key, *, since: datetime) -> Sequence[Change]:
        """One object's changes from that instant on, in order, after the one before them where that is kept."""

    def newest(self) -> int: ...

    def position(self, moment: datetime) -> int:
        """The newest revision at that instant. Raises ExpiredError when that is forgotten."""

    def oldest(self) -> int:
        """Watches can resume from this revision on."""

    def compact(self, before: datetime) -> int:
        """Forgets what is older; returns how many rows went."""


class Certificates(Protocol):
    """A record for every serial the hub ever signed, made before the signature leaves."""

    def add(self, record: CertificateRecord) -> None: ...

    def by_serial(self, serial: SerialNumber) -> CertificateRecord | None: ...

    def of_cluster(self, cluster: ClusterName) -> Sequence[CertificateRecord]: ...

    def of_request(self, request_uid: str) -> Sequence[CertificateRecord]:
        """What was issued for one CertificateSigningRequest: at most one agent certificate and its recovery certificate."""

    def of_key(self, key_hash: str) -> Sequence[CertificateRecord]:
        """Every record over one public key."""

    def of_credential(self, credential: CredentialId) -> Sequence[CertificateRecord]:
        """The certificates that one bootstrap credential is."""

    def revoke(self, serials: Collection[SerialNumber], at: datetime, reason: str) -> None: ...

    def revoked_since(self, moment: datetime) -> Sequence[SerialNumber]:
        """Serials whose revocation was written at `moment` or later."""


class Credentials(Protocol):
    """Bootstrap credentials and the cluster names that each has admitted."""

    def add(self, record: CredentialRecord) -> None: ...

    def by_id(self, credential: CredentialId) -> CredentialRecord | None: ...

    def admitted(self, credential: CredentialId) -> frozenset[ClusterName]: ...

    def has_admitted(self, credential: CredentialId, cluster: ClusterName) -> bool: ...

    def spent(self, credential: CredentialId) -> int:
        """How many cluster names it has admitted."""

    def admit(self, credential: CredentialId, cluster: ClusterName, at: datetime) -> None: ...

    def revoke(self, credential: CredentialId, at: datetime) -> None: ...

    def revoked_since(self, moment: datetime) -> Sequence[CredentialId]:
        """Credentials whose revocation was written at `moment` or later."""

    def all(self) -> Sequence[CredentialRecord]: ...


class Heartbeats(Protocol):
    """The newest beat per cluster: not news, no change-log row."""

    def store(self, beats: Iterable[Beat]) -> None:
        """One statement for all; stores database time minus each beat's age; never moves a beat backwards."""

    def of(self, cluster: ClusterName) -> LastBeat | None: ...

    def all(self) -> Sequence[LastBeat]: ...

    def set_session(self, cluster: ClusterName, session: str | None, *, agent_version: str | None = None) -> None:
        """Records that a session is open (its id), or with None that the one recorded has ended."""

    def forget(self, cluster: ClusterName) -> None: ...


class Transitions(Protocol):
    """Every change of a cluster's availability, kept longer than the change log."""

    def add(self, transition: Transition) -> None: ...

    def of(self, cluster: ClusterName, *, limit: int, uid: str | None = None) -> Sequence[Transition]:
        """The newest first; `uid`: those of one ManagedCluster, where others had its name before."""

    def falls(self, since: datetime, among: Collection[ClusterName] | None = None) -> Mapping[ClusterName, Sequence[datetime]]:
        """When each cluster ceased to be Available after that instant, oldest first; those that never did are left out.

        `among`: only these; None: all.
        """

    def silent(self, since: datetime, reason: str) -> int:
        """How many clusters turned Unknown after that instant for that reason, and are so still."""

    def trim(self, before: datetime, limit: int) -> int:
        """Forgets what is older, at most `limit`; returns how many."""


class Marks(Protocol):
    """The replicas' marks that beats can be stored."""

    def all(self) -> Sequence[Mark]: ...

    def put(self, mark: Mark) -> None:
        """Replaces the replica's mark."""

    def begin_anew(self, now: datetime) -> None:
        """The database's clock has jumped: no mark counts any more, and no beat is of the future."""

    def forget(self, before: datetime) -> None:
        """Drops marks that are older: their replicas are gone."""


class Replicas(Protocol):
    """The processes that serve this hub; not news, no change-log row."""

    def all(self) -> Sequence[Replica]:
        """In the order of their names."""

    def of(self, name: str) -> Replica | None: ...

    def put(self, replica: Replica) -> None: ...

    def remove(self, name: str) -> None: ...


class AgentSessions(Protocol):
    """The newest session of every agent, and which replica has it; not news either. `Heartbeats` knows one per cluster."""

    def open(self, session: AgentSession) -> bool:
        """Takes the place of the agent's older one. False: a newer one is recorded, and stays."""

    def close(self, cluster: ClusterName, agent: AgentId, session: str) -> None:
        """Nothing happens when another has taken its place."""

    def opened_since(self, moment: datetime, *, but: str) -> Sequence[AgentSession]:
        """Those that were opened at `moment` or later, on other replicas than `but`."""

    def replicas(self) -> Sequence[str]:
        """All that have one."""

    def end_of(self, replica: str) -> int:
        """Nobody has the sessions of this replica any more; how many they were."""

    def end_all(self) -> None: ...

    def end_unowned(self, before: datetime) -> int:
        """Ends what earlier releases recorded, which says no replica, where nothing was heard since `before`; how many."""


class Facts(Protocol):
    """Small facts about this hub: id, group suffix, schema."""

    def get(self, name: str) -> str | None: ...

    def set(self, name: str, value: str) -> None: ...

    def settle(self, name: str, value: str) -> str:
        """The fact; where there is none yet it is `value` from now on, whoever else settles it at the same moment."""


class AuditLog(Protocol):
    """Records of requests, a chain per replica. Links are added at an end and removed, by age, at a beginning; none changes."""

    def add(self, links: Sequence[Link]) -> None:
        """All of one chain, in one statement."""

    def head(self, replica: str) -> Head:
        """The last link; of a chain whose links were all removed the last one removed."""

    def anchors(self) -> Mapping[str, Head]:
        """By replica, the last link that was removed."""

    def replicas(self) -> Sequence[str]:
        """All that have links or an anchor."""

    def links(self, replica: str, *, after: int, limit: int) -> Sequence[Link]:
        """In the order of the chain, whatever they say."""

    def find(self, query: AuditQuery) -> Sequence[Link]:
        """In the order of time. One more than the query's limit, where there are more."""

    def trim(self, before: datetime, limit: int) -> int:
        """Removes what is older from the beginning of each chain, at most `limit` links, and keeps an anchor; how many went."""


class Leaders(Protocol):
    """Who leads, a record per lock; no news, so no change-log row.

    Renewing does not wait for the disk, taking and releasing do.
    """

    def of(self, lock: str) -> Record | None: ...

    def all(self) -> Mapping[str, Record]:
        """Every lock there is, by name."""

    def take(self, lock: str, seen: Record | None, candidate: Candidate, lease: timedelta) -> Record:
        """Makes `candidate` the holder in a new term, when the record is as `seen`; else ConflictError.

        Waits for transactions that have called `require` in the term before: none of them commits afterwards.
        """

    def renew(self, lock: str, held: Record) -> Record:
        """Raises ConflictError unless the lock is held as in `held`. Waits for no transaction that has called `require`."""

    def release(self, lock: str, held: Record) -> bool:
        """Whether it was held as in `held`. The term stays: the next one is higher."""

    def require(self, lock: str, term: int) -> None:
        """Raises NotLeaderError unless `term` is the lock's newest, which it stays until this transaction has ended."""


class Transaction(Protocol):
    """One unit of work. Nothing here is visible to others before it commits."""

    @property
    def now(self) -> datetime:
        """The database's time at the beginning of the transaction."""

    @property
    def objects(self) -> Objects: ...

    @property
    def changes(self) -> Changes: ...

    @property
    def certificates(self) -> Certificates: ...

    @property
    def credentials(self) -> Credentials: ...

    @property
    def heartbeats(self) -> Heartbeats: ...

    @property
    def transitions(self) -> Transitions: ...

    @property
    def marks(self) -> Marks: ...

    @property
    def replicas(self) -> Replicas: ...

    @property
    def agent_sessions(self) -> AgentSessions: ...

    @property
    def facts(self) -> Facts: ...

    @property
    def audit(self) -> AuditLog: ...

    @property
    def leaders(self) -> Leaders: ...


class Store(Protocol):
    """The database, from the event loop's side."""

    async def run(self, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a use case in one writing transaction and commits it. A cancelled caller does not tear it.

        Raises UnavailableError when the database cannot be written now.
        """

    async def read(self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a query on one consistent snapshot."""

    async def wait_for_change(self, after: int, within: timedelta) -> int:
        """Returns the newest visible revision as soon as it is above `after`, or when the time is over."""

    def follow(self, after: int, kinds: Collection[Kind] | None = None) -> AsyncIterator[Sequence[Change]]:
        """Every change above `after`, in order, in batches, without end; an empty batch says that all is told up to now.

        Raises ExpiredError when `after` is compacted.
        """

    async def check(self) -> None:
        """Raises UnavailableError unless the database answers."""

    async def close(self) -> None: ...


class Lifeline(Protocol):
    """A way to the database that load on the store cannot hold up: a connection and a thread of its own."""

    async def ask(self, use_case: Callable[[Leaders], T]) -> T:
        """One short transaction. Raises UnavailableError. A caller that is cancelled frees the connection for the next."""

    async def close(self) -> None: ...


class Issuer(Protocol):
    """Signs what the services decided. It checks nothing about who asked."""

    def issue(self, profile: Profile, serial: SerialNumber, now: datetime) -> IssuedCertificate:
        """A certificate for `profile`, linted before and after signing."""

    @property
    def trust_bundle(self) -> bytes:
        """PEM of what peers should trust."""


class Management(Protocol):
    """The Kubernetes cluster that has the hub as an aggregated API server. Everything raises MusterError."""

    async def config_map(self) -> Mapping[str, Any]:
        """`kube-system/extension-apiserver-authentication`."""

    async def review(self, kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
        """The status of a TokenReview or a SubjectAccessReview."""

    async def keep_bundle(self, bundle: bytes) -> None:
        """Writes the CAs by which the cluster knows this hub (PEM) where they differ."""
