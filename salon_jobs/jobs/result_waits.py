"""Waiting for the end of one job, or of several in turn.

A process that waits names its jobs to the workers, all new ones in one notification, and a worker that ends one of them
announces it in another, after the commit: a job without a waiter costs neither. A waiter also polls, first soon and
then every few seconds, since notifications may be lost, or not arrive at all behind a pooler.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import timedelta
from itertools import chain, repeat
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.apps import apps

from salon_jobs.conf import settings as conf
from salon_jobs.core.errors import JobCancelled, JobDoesNotExist, JobFailed, OptionInvalid, WaitRefused, WaitTimedOut
from salon_jobs.core.events import logging_errors
from salon_jobs.core.records import JobRecord, JobState
from salon_jobs.core.text import short_repr
from salon_jobs.db import statements
from salon_jobs.db.connections import alias_of
from salon_jobs.db.notify import CHANNEL, WakeUps
from salon_jobs.tenancy.active import current_store_id

# First word of the notifications that name awaited jobs to the workers, by their numbers.
AWAITED: Final = "awaited"
_ended: Final = WakeUps("salon_jobs_ended")
# A payload has at most 7,999 bytes; a number and its space take 20.
_MOST_NAMED: Final = 390
# All are named again, for workers that have started since, before a worker forgets them; and how many it remembers.
_NAMED_EVERY_S: Final = 20.0
_REMEMBERED_S: Final = 60.0
_MOST_REMEMBERED: Final = 20_000
# When a waiter polls: first soon, since its job may end before the workers know of the wait.
_FIRST_LOOKS_S: Final = (0.02, 0.05, 0.1, 0.25, 1.0)
_LOOK_EVERY_S: Final = 5.0
_DEAF_LOOK_EVERY_S: Final = 0.5
_LISTENS_ON_FOR_S: Final = 10.0


class AwaitedJobs:
    """The awaited jobs that this worker was told of. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # How long each is remembered. Their numbers as texts: any role may send a notification, with any content.
        self.until: dict[str, float] = {}

    def remember(self, payload: str) -> None:
        """Remember the jobs that a notification names."""
        now = time.monotonic()
        with self._lock:
            self.until = {job_id: until for job_id, until in self.until.items() if until > now}
            if len(self.until) < _MOST_REMEMBERED:
                self.until |= dict.fromkeys(payload.split()[1:], now + _REMEMBERED_S)

    def holds(self, job_ids: Iterable[int]) -> bool:
        return not self.until.keys().isdisjoint(map(str, job_ids))

    def announce(self, job_ids: Iterable[int], *, using: str) -> None:
        """Announce to waiters that these jobs have ended. The connection must be idle; its errors are only logged."""
        with self._lock:
            ended = [job_id for job_id in map(str, job_ids) if self.until.pop(job_id, None) is not None]
        with logging_errors("the ends of %s awaited jobs were not announced", len(ended)):
            for start in range(0, len(ended), _MOST_NAMED):
                _ended.notify(using, " ".join(ended[start : start + _MOST_NAMED]))


awaited: Final = AwaitedJobs()


class Waiters:
    """All waits of this process, and the single connection that receives announcements of ends. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The callback that wakes each wait.
        self._wakes: dict[Callable[[], object], Wait] = {}
        self._unnamed: dict[str, None] = {}
        self._listener: Any = None
        self._left_at = self._named_at = 0.0

    @contextmanager
    def waiting(self, wait: Wait, wake: Callable[[], object]) -> Generator[None]:
        """Call ``wake`` when the awaited job may have ended, until the end of the block."""
        self._wakes[wake] = wait
        try:
            yield
        finally:
            del self._wakes[wake]
            self._left_at = time.monotonic()

    def name(self, job_id: int, *, using: str) -> None:
        """Name the job to the workers now and at intervals, and listen to their announcements."""
        if not conf.listen:
            return
        with self._lock:
            self._unnamed[str(job_id)] = None
            if self._listener is None or not self._listener.is_alive:
                config: Any = apps.get_app_config("salon_jobs")
                self._listener = config.new_listener(_ended.channel, self._wake, using=using, send=self._naming)
                self._listener.start()
            self._listener.send_soon()

    @property
    def listening(self) -> bool:
        """Whether announcements arrive."""
        listener = self._listener
        return listener is not None and listener.listening is True

    def _naming(self) -> str:
        """Return the statement that names the new jobs; stop listening after a while without waits."""
        now = time.monotonic()
        with self._lock:
            if now - self._named_at > _NAMED_EVERY_S:
                self._unnamed, self._named_at = (
                    dict.fromkeys(str(wait.job_id) for wait in self._wakes.copy().values()),
                    now,
                )
            ids = list(self._unnamed)[:_MOST_NAMED]
            for job_id in ids:
                del self._unnamed[job_id]
            if self._listener is not None and not self._wakes and now - self._left_at > _LISTENS_ON_FOR_S:
                self._listener.stop()
                self._listener = None
        return f"NOTIFY {CHANNEL}, '{AWAITED} {' '.join(ids)}'" if ids else ""

    def _wake(self, payload: str) -> None:
        """Wake the waits for the jobs in a payload; all of them after a (re)connect, which has none."""
        named = set(payload.split())
        if not named:
            self._named_at = 0.0
        for wake, wait in self._wakes.copy().items():
            if not named or str(wait.job_id) in named:
                with suppress(RuntimeError):  # its event loop is closed
                    wake()


_waiters = Waiters()


def _wait_anew() -> None:
    """Begin without the parent's listener and its connection, which a fork copies and must not use."""
    global _waiters  # noqa: PLW0603 - one a process
    _waiters = Waiters()


os.register_at_fork(after_in_child=_wait_anew)


class Wait(ABC):
    """One wait, for at most ``timeout`` (seconds, or a timedelta). Raises OptionInvalid."""

    def __init__(self, timeout: timedelta | float) -> None:
        try:
            self._timeout_s = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
        except (TypeError, ValueError) as error:
            raise OptionInvalid(f"timeout must be a timedelta or seconds, not {short_repr(timeout)}") from error
        self._until = time.monotonic() + self._timeout_s
        # The job that is awaited now, of which the workers were told, and the result of the wait.
        self.job_id = 0
        self.value: Any = None

    def run(self) -> Any:
        """Block until the end; return ``value``. Raises the errors of ``look``."""
        woken = threading.Event()
        with _waiters.waiting(self, woken.set):
            while (pause_s := self.look()) is not None:
                woken.wait(pause_s)
                woken.clear()
        return self.value

    async def arun(self) -> Any:
        """Do the same from a coroutine, which queries on the thread of its other queries."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()
        look = sync_to_async(self.look)
        with _waiters.waiting(self, lambda: loop.call_soon_threadsafe(woken.set)):
            while (pause_s := await look()) is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(woken.wait(), pause_s)
                woken.clear()
        return self.value

    @abstractmethod
    def look(self) -> float | None:
        """Return the seconds until the next query, or None at the end, when ``value`` is set."""

    def await_end(self, job_id: int, record: JobRecord | None, using: str) -> float:
        """Have the workers announce this job's end; return the seconds until the next query.

        Raises WaitTimedOut, and WaitRefused if the job, as just read, belongs to this transaction.
        """
        if record is not None and record.is_uncommitted:
            raise WaitRefused(
                f"this transaction has enqueued job {job_id}, which can begin only after the commit: waiting for it "
                "here would never end. Wait after the transaction, or enqueue outside of it"
            )
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            state = "ending" if record is None else record.state
            raise WaitTimedOut(f"job {job_id} is still {state} after {self._timeout_s:g} s")
        if self.job_id != job_id:
            self.job_id, self._pauses = job_id, chain(_FIRST_LOOKS_S, repeat(_LOOK_EVERY_S))
            _waiters.name(job_id, using=using)
        longest_s = _LOOK_EVERY_S if _waiters.listening else _DEAF_LOOK_EVERY_S
        return min(left_s, next(self._pauses), longest_s)


class JobWait(Wait):
    """A wait for the end of one job and for its result."""

    def __init__(
        self, job_id: int, read: Callable[[], JobRecord | None], timeout: timedelta | float, *, by_public_id: bool
    ) -> None:
        """Prepare; ``read`` returns the job, or None if it is gone, or visible only by its public ID.

        Raises OptionInvalid.
        """
        super().__init__(timeout)
        self._id, self._read = job_id, read
        # Whether None means that it is gone.
        self._is_seen = by_public_id

    def look(self) -> float | None:
        """Return the seconds until the next query, or None if the job has succeeded.

        Raises JobFailed, JobCancelled, WaitTimedOut, WaitRefused, JobDoesNotExist.
        """
        record, using = self._read(), alias_of(None)
        if record is None:
            # Only a job that succeeded is deleted at its end. A job of another store is never visible.
            if self._is_seen or current_store_id() is not None or statements.rows("sees_all_jobs", using=using)[0][0]:
                return None
            raise JobDoesNotExist(
                f"job {self._id} cannot be seen: with roles, wait for a store's job as that store, and for one "
                "without a store by its public ID, which those of django.tasks have"
            )
        self._is_seen = True
        last = record.errors[-1] if record.errors else None
        match record.state:
            case JobState.SUCCEEDED:
                self.value = record.value
                return None
            case JobState.FAILED:
                error_class, message = (last.error_class, last.message) if last else ("", record.reason)
                text = f"job {record.id} of task {record.task!r} failed: {error_class}: {message}"
                raise JobFailed(text, error_class=error_class, message=message)
            case JobState.CANCELLED:
                raise JobCancelled(
                    f"job {record.id} of task {record.task!r} was cancelled: {record.reason}", reason=record.reason
                )
            case _:
                pass
        return self.await_end(self._id, record, using)
