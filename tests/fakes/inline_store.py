"""The hub's store on SQLite in memory. A use case runs at once, in the thread of its caller, so that time can be virtual."""

import sqlite3
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Column, Connection, Engine, Executable, StaticPool, create_engine, event, make_url, select, text

from hub.api.certificateauthorities.authority import AuthorityId, AuthorityRecord
from hub.api.certificates import CertificateRecord
from hub.api.hubreplicas import AgentSession, Replica
from hub.api.liveness import Checkpoint, LastBeat
from hub.api.managedclusters.availability import Transition
from hub.api.meta.change import Change, Kind
from hub.ports import Recording, Transaction
from hub.ports.liveness import LeaderLockConnection, Leaders
from hub.store import SqlStore, schema
from hub.store.changelog.tail import Tail
from hub.store.engine.notify import REVOCATIONS, Topic, Wake
from hub.store.engine.statements import Statement
from hub.store.migrate import upgrade
from hub.store.store import _call
from hub.store.writer.transaction import SqlTransaction
from hub.store.writer.write_queue import CLOSED, UseCase, WriteQueue, WriteTask
from machinery.election.lock import LockRecord
from machinery.errors import UnavailableError
from machinery.identity import AgentId, ClusterName, CredentialId, SerialNumber
from machinery.meta.objects import Key, StoredObject
from machinery.pki.encryption import Seal
from machinery.runtime.clock import Clock, SystemClock
from tests.checks import present

P = ParamSpec("P")
T = TypeVar("T")

URL = "sqlite:///in-memory"
SEAL = Seal([b"tests seal Secrets with this key"])
POLL = timedelta(days=1)
MANY = 1_000_000


@dataclass(frozen=True, slots=True)
class Saved:
    """A database as bytes, and its newest revision."""

    image: bytes
    newest: int


class InlineStore(SqlStore):
    """Needs no opening; `clock` is the database's time, `failure` is raised by whatever asks for the database next."""

    def __init__(self, clock: Clock | None = None) -> None:
        connection = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        connection.deserialize(_image())
        engines = (
            _engine(connection, "PRAGMA query_only=OFF", "BEGIN IMMEDIATE"),
            _engine(connection, "PRAGMA query_only=ON", "BEGIN"),
        )
        super().__init__(URL, SEAL, clock=clock or SystemClock(), alone=True, engines=engines)
        weakref.finalize(self, connection.close)
        self.failure: Exception | None = None
        self.revocations = 0
        self._database = connection
        self._tail = self._followed_from(0)
        self._writer = self._inline = InlineWriter(engines[0], self._begin, self._pass_on, at_most=1)

    def _pass_on(self, changes: Sequence[Change], topics: Collection[Topic]) -> None:
        if changes:
            self._followed.offer(changes)
        if REVOCATIONS in topics:
            self.revocations += 1
            self._revocations.wake()

    def transact(self, use_case: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`run` without an event loop."""
        self._check_open()
        result: T = self._inline.submit(partial(_call, use_case, args, kwargs)).result()
        return result

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError(CLOSED)
        if self.failure is not None:
            raise self.failure

    async def _write(self, *args: Any, **kwargs: Any) -> Any:
        self._check_open()
        return await super()._write(*args, **kwargs)

    async def look(self, query: Callable[Concatenate[Transaction, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.read(query, *args, **kwargs)

    async def _on(self, _threads: ThreadPoolExecutor, function: Callable[..., T], *args: Any) -> T:
        self._check_open()
        return function(*args)

    async def close(self) -> None:
        self._closed = True

    @property
    def state(self) -> "State":
        return State(self)

    def ask(self, use_case: Callable[[SqlTransaction], T]) -> T:
        """One transaction, also while `failure` is set or the store is closed."""
        found: T = self._inline.submit(use_case).result()
        return found

    def execute(self, statement: Executable) -> Sequence[Any]:
        """Rows of a query; or what a statement changes behind the hub's back."""

        def run(tx: SqlTransaction) -> Sequence[Any]:
            result = tx._connection.execute(statement)
            return result.all() if result.returns_rows else ()

        return self.ask(run)

    def saved(self) -> Saved:
        """All that is committed."""
        return Saved(self._database.serialize(), self.newest)

    def restore(self, saved: Saved) -> None:
        """Takes the place of all that is committed here."""
        self._database.deserialize(saved.image)
        self._tail = self._followed_from(saved.newest)

    def _followed_from(self, newest: int) -> Tail:
        return Tail(self._fetch, self._repair, newest, POLL, self._is_notified)


class InlineWriter(WriteQueue):
    """Runs each use case when it is submitted."""

    def submit(self, use_case: UseCase, recording: Recording | None = None, *, is_urgent: bool = False) -> Future[Any]:
        del is_urgent
        job = WriteTask(use_case, recording)
        job.future.set_running_or_notify_cancel()
        self._run([job])
        return job.future


class InlineLifeline(LeaderLockConnection):
    """A way to the same database that a `failure` of the store does not concern."""

    def __init__(self, store: InlineStore) -> None:
        self._store = store
        self._closed = False

    async def ask(self, use_case: Callable[[Leaders], T]) -> T:
        if self._closed:
            raise UnavailableError("the connection for the leader election is closed")
        return self._store.ask(lambda tx: use_case(tx.leaders))

    async def close(self) -> None:
        self._closed = True


class State:
    """What is committed, however the store fails meanwhile: copies, by their keys."""

    def __init__(self, store: InlineStore) -> None:
        self._store = store
        self._ask = store.ask

    def _keys(self, *columns: Column[Any]) -> Sequence[Any]:
        """In the order in which the rows were written."""
        return self._store.execute(select(*columns).order_by(text("rowid")))

    @property
    def objects(self) -> Mapping[tuple[Kind, Key], StoredObject]:
        row = schema.objects.c
        places = [(kind, Key(*key)) for kind, *key in self._keys(row.kind, row.namespace, row.name)]
        return self._ask(lambda tx: {place: present(tx.objects.get(*place)) for place in places})

    @property
    def beats(self) -> Mapping[ClusterName, LastBeat]:
        return self._ask(lambda tx: {beat.cluster: beat for beat in tx.heartbeats.all()})

    @property
    def marks(self) -> Mapping[str, Checkpoint]:
        return self._ask(lambda tx: {mark.replica: mark for mark in tx.marks.all()})

    @property
    def replicas(self) -> Mapping[str, Replica]:
        return self._ask(lambda tx: {replica.name: replica for replica in tx.replicas.all()})

    @property
    def sessions(self) -> Mapping[tuple[ClusterName, AgentId], AgentSession]:
        clusters = {ClusterName(name) for (name,) in self._keys(schema.sessions.c.cluster)}
        return self._ask(lambda tx: {(name, each.agent): each for name in clusters for each in tx.agent_sessions.of(name)})

    @property
    def certificates(self) -> Mapping[SerialNumber, CertificateRecord]:
        serials = [SerialNumber(int(serial, 16)) for (serial,) in self._keys(schema.certificates.c.serial)]
        return self._ask(lambda tx: {serial: present(tx.certificates.by_serial(serial)) for serial in serials})

    @property
    def admissions(self) -> Mapping[CredentialId, Collection[ClusterName]]:
        credentials = {CredentialId(name) for (name,) in self._keys(schema.admissions.c.credential)}
        return self._ask(lambda tx: {name: tx.credentials.admitted(name) for name in credentials})

    @property
    def authorities(self) -> Mapping[AuthorityId, AuthorityRecord]:
        return self._ask(lambda tx: {each.id: each for each in tx.authorities.all()})

    @property
    def sealed_keys(self) -> Mapping[AuthorityId, bytes]:
        return self._ask(lambda tx: {each.id: tx.authorities.sealed_key(each.id) or b"" for each in tx.authorities.all()})

    @property
    def revision(self) -> int:
        return self._store.newest

    @property
    def revocations(self) -> int:
        """How often it was rung for one."""
        return self._store.revocations

    @property
    def log(self) -> Sequence[Change]:
        return self._ask(lambda tx: tx.changes.since(tx.changes.oldest(), limit=MANY))

    @property
    def transitions(self) -> Sequence[Transition]:
        rows = self._store.execute(select(schema.transitions.c.cluster).distinct())
        return self._ask(lambda tx: [each for (name,) in rows for each in reversed(tx.transitions.of(name, limit=MANY))])

    @property
    def leader(self) -> LockRecord | None:
        return self._ask(lambda tx: tx.leaders.record())


def put_certificate(tx: Transaction, record: CertificateRecord) -> None:
    """In the place of the one with its serial number."""
    tx.certificates.forget([record.serial])
    tx.certificates.add(record)


def _engine(connection: sqlite3.Connection, *first: str) -> Engine:
    """All engines share a dialect and what was compiled for it: to compile takes longer than to run."""
    template, compiled = _template()
    driver: Any = connection  # of the driver's own type, not of SQLAlchemy's
    engine = Engine(StaticPool(lambda: driver), template.dialect, template.url)
    statements = [Statement(text(command)) for command in first]

    @event.listens_for(engine, "begin")
    def begin(begun: Connection) -> None:
        for statement in statements:
            statement.run(begun, {})

    return engine.execution_options(compiled_cache=compiled)


@cache
def _template() -> tuple[Engine, dict[Any, Any]]:
    engine = create_engine(make_url("sqlite://"))
    engine.connect().close()
    return engine, {}


@cache
def _image() -> bytes:
    """A database that was migrated in this process."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    upgrade(engine)
    with engine.connect() as connection:
        driver: Any = connection.connection.dbapi_connection
        image: bytes = driver.serialize()
    engine.dispose()
    return image


class Bell(InlineStore):
    """`announced`: whether anybody may count on it."""

    def __init__(self, *, announced: bool = True) -> None:
        super().__init__()
        self.announced = announced
        self.wakes: list[Wake] = []

    @contextmanager
    def subscribe_to_revocations(self, wake: Wake) -> Iterator[Callable[[], bool]]:
        self.wakes.append(wake)
        yield lambda: self.announced

    def ring(self) -> None:
        for wake in self.wakes:
            wake()
