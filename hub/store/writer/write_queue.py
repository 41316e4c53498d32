"""Runs use cases in transactions on one writer thread.

Use cases that arrive during a commit share the next transaction, each behind its own savepoint, so that they need only one
flush to the disk. When a shared transaction fails, its use cases run again one by one. A use case that lost a race against
another transaction runs again. A write whose commit is in doubt never runs again (`hub.store.engine.engine`). The use case of a
cancelled caller runs completely or not at all.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DataError

from hub.api.auditrecords import AuditEntry
from hub.api.meta.change import Change
from hub.ports import Recording
from hub.store.engine.engine import UnknownOutcomeError, transaction
from hub.store.engine.errors import is_locked, is_lost, is_race, is_read_only, translated
from hub.store.engine.notify import Topic, take_notifications
from hub.store.engine.statements import Statement, note_write
from hub.store.writer.transaction import SqlTransaction
from machinery.errors import MusterError, UnavailableError

UseCase = Callable[[SqlTransaction], Any]
Start = Callable[[Connection], datetime]
"""Runs the first statement of every transaction and returns the transaction's time."""
Begun = Callable[[Connection, datetime], SqlTransaction]
Committed = Callable[[Sequence[Change]], None]
Rung = Callable[[Collection[Topic]], None]

ATTEMPTS = 3
LOCKED_OUT = 2
"""Consecutive lock time-outs after which the database counts as unwritable."""
_SAVE, _TAKE_BACK, _RELEASE = (
    Statement(text(command)) for command in ("SAVEPOINT one", "ROLLBACK TO SAVEPOINT one", "RELEASE SAVEPOINT one")
)
CLOSED = "the store is closed"


@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """A failed write. Compared by identity."""

    message: str


class WriteTask:
    """A use case and the future of its caller. `recording`: the audit recording of the request that it belongs to."""

    def __init__(self, use_case: UseCase, recording: Recording | None = None) -> None:
        self.use_case = use_case
        self._recording = recording
        self.future: Future[Any] = Future()
        self.changes: Sequence[Change] = ()
        self._refused = False
        self._outcome: Callable[[], None] = lambda: None

    def run(self, transaction: SqlTransaction) -> None:
        transaction.reset_writes()
        result = self.use_case(transaction)
        self.changes = transaction.flush()
        recorded = self._recording if self._recording and transaction.has_written else None
        entry = recorded.entry(self.changes) if recorded is not None else None
        if entry is not None:
            transaction.audit.add((entry,))
        self._outcome = lambda: self._succeed(result, entry)

    def _succeed(self, result: Any, entry: AuditEntry | None) -> None:
        if self._recording is not None and entry is not None:
            self._recording.committed(entry)
        self.future.set_result(result)

    def refuse(self, error: Exception) -> None:
        """Fail with this error, also when the transaction fails later: the task's own writes are already rolled back."""
        self.fail(error)
        self._refused = True

    def forget(self) -> None:
        """Clear the refusal before the task runs again."""
        self._refused = False

    def fail(self, error: Exception) -> None:
        if self._refused:
            return
        self.changes = ()
        self._outcome = lambda: self.future.set_exception(translated(error))

    def finish(self) -> None:
        """Resolve the caller's future. Call it after the end of the transaction."""
        self._outcome()


def _note_write(connection: Connection, _cursor: Any, sql: str, *_: Any) -> None:
    note_write(connection, sql)


class WriteQueue:
    """The writer thread and its connection."""

    def __init__(self, engine: Engine, start: Start, begun: Begun, callbacks: tuple[Committed, Rung], *, at_most: int) -> None:
        """`callbacks`: callbacks for committed changes and for rung topics; both run on the writer thread.

        `at_most`: use cases per transaction.
        """
        self._engine = engine
        self._start = start
        self._begun = begun
        self._committed, self._rung = callbacks
        self._at_most = at_most
        event.listen(engine, "after_cursor_execute", _note_write)
        self._jobs: SimpleQueue[WriteTask | None] = SimpleQueue()
        self._closed = False
        self._fault: Fault | None = None
        self._noting = Lock()
        self._locked_out = 0
        self._thread = Thread(target=self._work, name="store-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def fault(self) -> Fault | None:
        """The newest failed write that `proven` has not cleared; None: the database accepts writes.

        A successful write does not clear it: on a full disk, writes that need no new room (beats) succeed while others fail.
        """
        return self._fault

    def proven(self, fault: Fault) -> None:
        """Clear `fault` after a write that needed new room. A newer fault stays."""
        with self._noting:
            if self._fault is fault:
                self._fault = None

    def submit(self, use_case: UseCase, recording: Recording | None = None) -> Future[Any]:
        """Queue a use case. The future resolves after the commit. Raises UnavailableError after `close`."""
        if self._closed:
            raise UnavailableError(CLOSED)
        job = WriteTask(use_case, recording)
        self._jobs.put(job)
        return job.future

    def close(self) -> None:
        """Wait for the submitted use cases. Idempotent."""
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

    def _gather(self, first: WriteTask) -> tuple[list[WriteTask], bool]:
        """The queued tasks that are not cancelled, and whether the queue has been closed."""
        batch, ended = [first], False
        while len(batch) < self._at_most and not ended:
            try:
                job = self._jobs.get_nowait()
            except Empty:
                break
            if job is None:
                ended = True
            else:
                batch.append(job)
        return [job for job in batch if job.future.set_running_or_notify_cancel()], ended

    def _run(self, batch: Sequence[WriteTask], attempts: int = ATTEMPTS) -> None:
        """Run all tasks in one transaction, and resolve the futures of their callers after it."""
        begun = False
        try:
            with transaction(self._engine) as connection:
                now = self._start(connection)
                begun = True
                for job in batch:
                    if len(batch) > 1:
                        self._run_apart(connection, now, job)
                    else:
                        job.run(self._begun(connection, now))
                topics = take_notifications(connection)
        except Exception as error:  # noqa: BLE001 - the thread outlives every failure; each caller is told
            self._note(error)
            if self._has_run_again(batch, error, attempts, begun=begun):
                return
            for job in batch:
                job.fail(error)
        else:
            self._done(topics)
        for job in batch:
            if job.changes:
                self._committed(job.changes)
            job.finish()

    def _has_run_again(self, batch: Sequence[WriteTask], error: Exception, attempts: int, *, begun: bool) -> bool:
        """Run tasks of a failed shared transaction one by one, and a task that lost a race again.

        If a shared transaction did not even begin, each task alone would wait as long for the same error.
        """
        if len(batch) > 1:
            if not begun or isinstance(error, UnknownOutcomeError) or is_lost(error):
                return False
            for job in batch:
                job.forget()
                self._run((job,))
            return True
        if not is_race(error) or attempts == 1:
            return False
        self._run(batch, attempts - 1)
        return True

    def _run_apart(self, connection: Connection, now: datetime, job: WriteTask) -> None:
        """Run one task behind a savepoint. A refusal rolls back only its own writes."""
        _SAVE.run(connection, {})
        try:
            job.run(self._begun(connection, now))
        except (MusterError, DataError) as error:
            _TAKE_BACK.run(connection, {})
            job.refuse(error)
        _RELEASE.run(connection, {})

    def _done(self, topics: Collection[Topic]) -> None:
        """Note that the database accepted a write, and pass on the rung topics."""
        self._locked_out = 0
        if topics:
            self._rung(topics)

    def _note(self, error: Exception) -> None:
        """Remember why the database did not accept a write, and disconnect from a server that has become read-only."""
        meaning = translated(error)
        if isinstance(error, MusterError) and not isinstance(error, UnknownOutcomeError):
            return  # a refusal by the use case, not by the database
        self._locked_out = self._locked_out + 1 if is_locked(error) else 0
        if isinstance(meaning, UnavailableError) and self._locked_out not in range(1, LOCKED_OUT):
            with self._noting:
                self._fault = Fault(meaning.message)
        if is_read_only(error):
            self._engine.dispose()
