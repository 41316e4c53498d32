"""Runs use cases in transactions on one writer thread.

Use cases that arrive during a commit share the next transaction, each behind its own savepoint, so that they need only one
flush to the disk. When a shared transaction fails, its use cases run again one by one. A use case that lost a race against
another transaction runs again. A write whose commit is in doubt never runs again (`hub.store.engine.engine`). The use case of a
cancelled caller runs completely or not at all.
"""

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
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
Begin = Callable[[Connection], Callable[[], SqlTransaction]]
"""Runs the first statement of every transaction, and returns what makes the view of each use case on it."""
Committed = Callable[[Sequence[Change], Collection[Topic]], None]
"""Called on the writer thread with the changes of a transaction and the topics to pass on in this process."""

ATTEMPTS = 3
LOCKED_OUT = 2
"""Consecutive lock time-outs after which the database counts as unwritable."""
_SAVE, _TAKE_BACK, _RELEASE = (
    Statement(text(command)) for command in ("SAVEPOINT one", "ROLLBACK TO SAVEPOINT one", "RELEASE SAVEPOINT one")
)
CLOSED = "the store is closed"


class WriteTask:
    """A use case and the future of its caller. `recording`: the audit recording of the request that it belongs to."""

    def __init__(self, use_case: UseCase, recording: Recording | None = None) -> None:
        self.use_case = use_case
        self._recording = recording
        self.future: Future[Any] = Future()
        self.changes: Sequence[Change] = ()
        self.refusal: Exception | None = None
        """Why the use case refused: the outcome also if the transaction fails later, as its writes are already rolled back."""
        self._error: Exception | None = None
        self._result: Any = None
        self._entry: AuditEntry | None = None

    def run(self, transaction: SqlTransaction) -> None:
        transaction.reset_writes()
        self._result = self.use_case(transaction)
        self.changes = transaction.flush()
        recorded = self._recording if self._recording and transaction.has_written else None
        self._entry = recorded.entry(self.changes) if recorded is not None else None
        if self._entry is not None:
            transaction.audit.add((self._entry,))
        self._error = None

    def fail(self, error: Exception) -> None:
        self.changes = ()
        self._error = self.refusal or error

    def finish(self) -> None:
        """Resolve the caller's future. Call it after the end of the transaction."""
        if self._error is not None:
            self.future.set_exception(translated(self._error))
            return
        if self._recording is not None and self._entry is not None:
            self._recording.committed(self._entry)
        self.future.set_result(self._result)


def _note_write(connection: Connection, _cursor: Any, sql: str, *_: Any) -> None:
    note_write(connection, sql)


class WriteQueue:
    """The writer thread and its connection."""

    def __init__(self, engine: Engine, begin: Begin, committed: Committed, *, at_most: int) -> None:
        """`at_most`: use cases per transaction."""
        self._engine = engine
        self._begin = begin
        self._committed = committed
        self._at_most = at_most
        event.listen(engine, "after_cursor_execute", _note_write)
        self._jobs: SimpleQueue[WriteTask | None] = SimpleQueue()
        self._closed = False
        self._fault: Exception | None = None
        self._noting = Lock()
        self._locked_out = 0
        self._thread = Thread(target=self._work, name="store-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def fault(self) -> Exception | None:
        """The error of the newest failed write that `proven` has not cleared; None: the database accepts writes.

        A successful write does not clear it: on a full disk, writes that need no new room (beats) succeed while others fail.
        """
        return self._fault

    def proven(self, fault: Exception) -> None:
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
                view = self._begin(connection)
                begun = True
                for job in batch:
                    if len(batch) > 1:
                        self._run_apart(connection, view(), job)
                    else:
                        job.run(view())
                topics = take_notifications(connection)
        except Exception as error:  # noqa: BLE001 - the thread outlives every failure; each caller is told
            self._note(error)
            if self._has_run_again(batch, error, attempts, begun=begun):
                return
            for job in batch:
                job.fail(error)
        else:
            self._locked_out = 0
            changes = [change for job in batch for change in job.changes]
            if changes or topics:
                self._committed(changes, topics)
        for job in batch:
            job.finish()

    def _has_run_again(self, batch: Sequence[WriteTask], error: Exception, attempts: int, *, begun: bool) -> bool:
        """Run tasks of a failed shared transaction one by one, and a task that lost a race again.

        If a shared transaction did not even begin, each task alone would wait as long for the same error.
        """
        if len(batch) > 1:
            if not begun or isinstance(error, UnknownOutcomeError) or is_lost(error):
                return False
            for job in batch:
                job.refusal = None
                self._run((job,))
            return True
        if not is_race(error) or attempts == 1:
            return False
        self._run(batch, attempts - 1)
        return True

    def _run_apart(self, connection: Connection, view: SqlTransaction, job: WriteTask) -> None:
        """Run one task behind a savepoint. A refusal rolls back only its own writes."""
        _SAVE.run(connection, {})
        try:
            job.run(view)
        except (MusterError, DataError) as error:
            _TAKE_BACK.run(connection, {})
            job.refusal = error
            job.fail(error)
        _RELEASE.run(connection, {})

    def _note(self, error: Exception) -> None:
        """Remember why the database did not accept a write, and disconnect from a server that has become read-only."""
        meaning = translated(error)
        if isinstance(error, MusterError) and not isinstance(error, UnknownOutcomeError):
            return  # a refusal by the use case, not by the database
        self._locked_out = self._locked_out + 1 if is_locked(error) else 0
        if isinstance(meaning, UnavailableError) and self._locked_out not in range(1, LOCKED_OUT):
            with self._noting:
                self._fault = meaning
        if is_read_only(error):
            self._engine.dispose()
