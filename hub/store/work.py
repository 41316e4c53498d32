"""Running use cases in transactions on threads of the store's own.

SQLite has one writer thread. While one commit is on its way to the disk, the use cases that arrive gather and share the next
transaction, each behind a savepoint of its own: one flush to the disk for all of them. When a shared transaction fails, its use
cases run again one by one, so that none suffers for another. PostgreSQL has a pool of threads; a use case that lost a race runs
again. In both, a caller that is cancelled leaves the use case undone or done, never torn.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol

from sqlalchemy import Connection, Engine

from hub.domain.change import Change
from hub.store.failures import is_race, translated
from hub.store.transaction import SqlTransaction
from machinery.errors import MusterError, UnavailableError

UseCase = Callable[[SqlTransaction], Any]
Begun = Callable[[Connection], SqlTransaction]
Committed = Callable[[Sequence[Change]], None]

MAX_SHARED = 64
ATTEMPTS = 3
CLOSED = "the store is closed"


class Writer(Protocol):
    """Where writing transactions run."""

    def submit(self, use_case: UseCase) -> Future[Any]:
        """The outcome, when it is committed. Raises UnavailableError after `close`."""

    def close(self) -> None:
        """Waits for what was submitted. Safe to call twice."""


class Job:
    """One use case and the future that its caller waits for."""

    def __init__(self, use_case: UseCase) -> None:
        self.use_case = use_case
        self.future: Future[Any] = Future()
        self.changes: Sequence[Change] = ()
        self._outcome: Callable[[], None] = lambda: None

    def run(self, transaction: SqlTransaction) -> None:
        result = self.use_case(transaction)
        self.changes = transaction.flush()
        self._outcome = lambda: self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        self.changes = ()
        self._outcome = lambda: self.future.set_exception(translated(error))

    def finish(self) -> None:
        """Tells the caller, once the transaction has ended."""
        self._outcome()


class SharedWriter(Writer):
    """One thread, one connection; see the module."""

    def __init__(self, engine: Engine, begun: Begun, committed: Committed) -> None:
        self._engine = engine
        self._begun = begun
        self._committed = committed
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._work, name="store-writer", daemon=True)
        self._thread.start()

    def submit(self, use_case: UseCase) -> Future[Any]:
        if self._closed:
            raise UnavailableError(CLOSED)
        job = Job(use_case)
        self._jobs.put(job)
        return job.future

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            batch, ended = self._gather(job)
            self._run(batch)
            if ended:
                return

    def _gather(self, first: Job) -> tuple[list[Job], bool]:
        """What waits now and is still wanted; and whether the end was among it."""
        batch, ended = [first], False
        while len(batch) < MAX_SHARED and not ended:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is None:
                ended = True
            else:
                batch.append(job)
        return [job for job in batch if job.future.set_running_or_notify_cancel()], ended

    def _run(self, batch: list[Job]) -> None:
        begun = False
        try:
            if batch:
                with self._engine.begin() as connection:
                    begun = True
                    self._run_all(connection, batch)
        except Exception as error:  # noqa: BLE001 - the thread outlives every failure; each caller is told
            if begun and len(batch) > 1:
                for job in batch:
                    self._run([job])
                return
            for job in batch:
                job.fail(error)
        for job in batch:
            if job.changes:
                self._committed(job.changes)
            job.finish()

    def _run_all(self, connection: Connection, batch: list[Job]) -> None:
        if len(batch) == 1:
            batch[0].run(self._begun(connection))
            return
        for job in batch:
            self._run_apart(connection, job)

    def _run_apart(self, connection: Connection, job: Job) -> None:
        """One use case of several: its failure takes back its own writes only."""
        savepoint = connection.begin_nested()
        try:
            job.run(self._begun(connection))
        except MusterError as error:
            savepoint.rollback()
            job.fail(error)
        else:
            savepoint.commit()


class PoolWriter(Writer):
    """Several threads, a transaction each; a use case that lost a race runs again, with the counter locked from its start."""

    def __init__(self, engine: Engine, begun: Begun, committed: Committed, *, threads: int) -> None:
        self._engine = engine
        self._begun = begun
        self._committed = committed
        self._closed = False
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="store-writer")

    def submit(self, use_case: UseCase) -> Future[Any]:
        if self._closed:
            raise UnavailableError(CLOSED)
        return self._threads.submit(self._run, use_case)

    def close(self) -> None:
        self._closed = True
        self._threads.shutdown(wait=True)

    def _run(self, use_case: UseCase) -> Any:
        for attempt in range(ATTEMPTS):
            try:
                result, changes = self._attempt(use_case, alone=attempt > 0)
            except Exception as error:
                if is_race(error) and attempt < ATTEMPTS - 1:
                    continue
                raise translated(error) from error
            break
        if changes:
            self._committed(changes)
        return result

    def _attempt(self, use_case: UseCase, *, alone: bool) -> tuple[Any, Sequence[Change]]:
        with self._engine.begin() as connection:
            transaction = self._begun(connection)
            if alone:
                transaction.changes.lock()
            result = use_case(transaction)
            return result, transaction.flush()
