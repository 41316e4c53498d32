"""Runs use cases in transactions on one writer thread.

Use cases that arrive during a commit share the next transaction, so that they need only one flush to the disk. Each of them
runs behind its own savepoint. A transaction ends soon after TOGETHER. Urgent use cases (heartbeats) come first in the next
transaction, even if many others wait. When a shared transaction fails, its use cases run again one by one. A use case that lost
a race against another transaction runs again. A write whose commit is in doubt never runs again (`hub.store.engine.engine`).
The use case of a cancelled caller runs completely or not at all.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Condition, Lock, Thread
from time import monotonic
from typing import Any

from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import DataError

from hub.api.auditrecords import AuditEntry
from hub.api.meta.change import Change
from hub.ports import Recording
from hub.store.engine.engine import UnknownOutcomeError, transaction
from hub.store.engine.errors import is_locked, is_lost, is_no_text, is_race, is_read_only, translated
from hub.store.engine.notify import Topic, take_notifications
from hub.store.engine.statements import Statement, note_write
from hub.store.writer.transaction import SqlTransaction
from machinery.errors import MusterError, UnavailableError

UseCase = Callable[[SqlTransaction], Any]
Begin = Callable[[Connection], Callable[[], SqlTransaction]]
"""Runs the first statement of a transaction. Returns a function that creates a SqlTransaction for each use case."""
Committed = Callable[[Sequence[Change], Collection[Topic]], None]
"""Called on the writer thread with the changes of a transaction and the topics to pass on in this process."""

ATTEMPTS = 3
TOGETHER = 0.05
"""Seconds after which no further use case joins a transaction."""
LOCKED_OUT = 2
"""Consecutive lock time-outs after which the database counts as unwritable."""
_SAVE, _TAKE_BACK, _RELEASE = (
    Statement(text(command)) for command in ("SAVEPOINT one", "ROLLBACK TO SAVEPOINT one", "RELEASE SAVEPOINT one")
)
CLOSED = "the store is closed"


@dataclass(eq=False, slots=True)
class WriteTask:
    """A use case and the future of its caller. `recording`: the audit recording of its request."""

    use_case: UseCase
    recording: Recording | None = None
    future: Future[Any] = field(default_factory=Future)
    submitted: float = field(default_factory=monotonic)
    changes: Sequence[Change] = ()
    _result: Any = None
    _entry: AuditEntry | None = None

    def run(self, transaction: SqlTransaction) -> None:
        transaction.reset_writes()
        self._result = self.use_case(transaction)
        self.changes = transaction.flush()
        recorded = self.recording if self.recording and transaction.has_written else None
        self._entry = recorded.entry(self.changes) if recorded is not None else None
        if self._entry is not None:
            transaction.audit.add((self._entry,))

    def finish(self, error: Exception | None) -> None:
        """Resolve the caller's future. Call it after the end of the transaction."""
        if error is not None:
            self.future.set_exception(translated(error))
            return
        if self.recording is not None and self._entry is not None:
            self.recording.committed(self._entry)
        self.future.set_result(self._result)


def _run_apart(
    connection: Connection, view: Callable[[], SqlTransaction], batch: Sequence[WriteTask]
) -> tuple[dict[WriteTask, Exception], int]:
    """Until TOGETHER is over, run each task behind a savepoint, so that a refusal rolls back only the task's own writes.

    Returns the refusals, and the number of tasks that have run.
    """
    refusals: dict[WriteTask, Exception] = {}
    end = monotonic() + TOGETHER
    for count, job in enumerate(batch):
        if count and monotonic() > end:
            return refusals, count
        _SAVE.run(connection, {})
        try:
            job.run(view())
        except Exception as error:
            if not isinstance(error, MusterError | DataError) and not is_no_text(error):
                raise
            _TAKE_BACK.run(connection, {})
            refusals[job] = error
        _RELEASE.run(connection, {})
    return refusals, len(batch)


def _note_write(connection: Connection, _cursor: Any, sql: str, *_: Any) -> None:
    note_write(connection, sql)


class WriteQueue:
    """Runs the submitted use cases on one writer thread with one connection."""

    def __init__(self, engine: Engine, begin: Begin, committed: Committed, *, at_most: int) -> None:
        """`at_most`: use cases per transaction."""
        self._engine = engine
        self._begin = begin
        self._committed = committed
        self._at_most = at_most
        event.listen(engine, "after_cursor_execute", _note_write)
        self._jobs: deque[WriteTask] = deque()
        self._urgent: deque[WriteTask] = deque()
        self._left: Sequence[WriteTask] = ()
        """Tasks that were taken from the queue for a transaction that had no time for them."""
        self._filled = Condition()
        """Guards both queues and `_closed`."""
        self._closed = False
        self._fault: Exception | None = None
        self._noting = Lock()
        self._locked_out = 0
        self._thread = Thread(target=self._work, name="store-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def fault(self) -> Exception | None:
        """The error of the newest failed write, until `proven` clears the error; None if the database accepts writes.

        A successful write does not clear the fault: on a full disk, writes that need no new space (beats) succeed, others fail.
        """
        return self._fault

    def proven(self, fault: Exception) -> None:
        """Clear `fault` after a write that needed new space. A newer fault stays."""
        with self._noting:
            if self._fault is fault:
                self._fault = None

    @property
    def delay(self) -> float:
        """Seconds for which the oldest waiting use case has waited. Urgent use cases do not count."""
        with self._filled:
            waiting = self._left or self._jobs
            return monotonic() - waiting[0].submitted if waiting else 0.0

    def submit(self, use_case: UseCase, recording: Recording | None = None, *, is_urgent: bool = False) -> Future[Any]:
        """Queue a use case. The future resolves after the commit. Raises UnavailableError after `close`."""
        job = WriteTask(use_case, recording)
        with self._filled:
            if self._closed:
                raise UnavailableError(CLOSED)
            (self._urgent if is_urgent else self._jobs).append(job)
            self._filled.notify()
        return job.future

    def close(self) -> None:
        """Wait for the submitted use cases. Idempotent."""
        with self._filled:
            self._closed = True
            self._filled.notify()
        self._thread.join()

    def _work(self) -> None:
        """Until `close`, run the queued tasks that are not cancelled, as many together as possible."""
        while (taken := self._take()) is not None:
            self._left = self._run(taken) if taken else ()

    def _take(self) -> Sequence[WriteTask] | None:
        """Wait for tasks. Returns urgent tasks, then tasks left over, then others. None: the queue is closed and empty."""
        with self._filled:
            while not (self._left or self._urgent or self._jobs):
                if self._closed:
                    return None
                self._filled.wait()
            urgent = self._next_of(self._urgent, self._at_most)
            left, self._left = self._left, ()
            room = max(self._at_most - len(urgent) - len(left), 0)
            return *urgent, *left, *self._next_of(self._jobs, room)

    def _next_of(self, queue: deque[WriteTask], count: int) -> Sequence[WriteTask]:
        taken = [queue.popleft() for _ in range(min(count, len(queue)))]
        return [each for each in taken if each.future.set_running_or_notify_cancel()]

    def _run(self, batch: Sequence[WriteTask], attempts: int = ATTEMPTS) -> Sequence[WriteTask]:
        """Run tasks in one transaction, and then resolve the futures of their callers. Returns the tasks that have not run.

        Tasks of a failed shared transaction run again one by one, and a task that lost a race runs again. If a shared
        transaction could not even begin, its tasks do not run again: each would wait as long for the same error.
        """
        begun, shared = False, len(batch) > 1
        left: Sequence[WriteTask] = ()
        refusals: dict[WriteTask, Exception] = {}
        failure: Exception | None = None
        try:
            with transaction(self._engine) as connection:
                view = self._begin(connection)
                begun = True
                if shared:
                    refusals, count = _run_apart(connection, view, batch)
                    batch, left = batch[:count], batch[count:]
                else:
                    for job in batch:
                        job.run(view())
                topics = take_notifications(connection)
        except Exception as error:  # noqa: BLE001 - the thread outlives every failure; each caller gets it
            self._note(error)
            if shared and begun and not isinstance(error, UnknownOutcomeError) and not is_lost(error):
                for job in batch:
                    self._run((job,))
                return left
            if not shared and is_race(error) and attempts > 1:
                return self._run(batch, attempts - 1)
            failure = error
        else:
            self._locked_out = 0
            changes = [change for job in batch if job not in refusals for change in job.changes]
            if changes or topics:
                self._committed(changes, topics)
        for job in batch:  # a refusal stays the outcome even if the transaction fails later
            job.finish(refusals.get(job, failure))
        return left

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
