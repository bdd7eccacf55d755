"""Base of all loops: work in rounds until stopped, and waits while the database does not answer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, Final
from weakref import WeakSet

from django.db import Error, connections
from psycopg.errors import DeadlockDetected, SerializationFailure

from salon_jobs.core import events
from salon_jobs.core.backoff import Backoff
from salon_jobs.core.events import log_event
from salon_jobs.core.vital import exits_on_error
from salon_jobs.db.statements import is_of_driver
from salon_jobs.db.upkeep import is_only_old, remember_connections, tidy_connections

OUTAGE_WAITS: Final = Backoff(base=timedelta(seconds=0.1), cap=timedelta(seconds=2))
_LOG_EVERY_S: Final = 30.0
# Retry a conflict with another transaction soon; it is no outage unless it goes on.
_CONFLICT_WAITS: Final = Backoff(base=timedelta(milliseconds=5), cap=timedelta(milliseconds=200), jitter=0.5)
_MOST_CONFLICTS: Final = 20
_woken_after_outages: WeakSet[Loop] = WeakSet()


class Outage:
    """Outage of the database, as one loop sees it. Not thread-safe.

    Retries after 0.1 s, doubling to 2 s. Logs its start, that it lasts (every 30 s), and its end. A serialization
    failure or a deadlock is retried within milliseconds, without a record unless it happens 20 times in a row. A
    statement that psycopg refuses is retried like an outage, but logged as a bug of ours, and the connection is kept.
    """

    def __init__(self, loop: str, *, using: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare for outages of the loop that the log calls ``loop``."""
        self._loop = loop
        self._using = using
        self._clock = clock
        self._failures = 0
        self._was_lost = False
        self._log_at = float("-inf")

    def lost(self, error: BaseException, **fields: Any) -> float:
        """Record a failure, have the connections checked before the next use, and return the seconds until a retry."""
        self._failures += 1
        is_conflict = isinstance(error.__cause__, SerializationFailure | DeadlockDetected)
        if is_conflict and self._failures <= _MOST_CONFLICTS:
            return _CONFLICT_WAITS.delay(self._failures).total_seconds()
        is_ours = is_of_driver(error)
        if self._clock() >= self._log_at:
            self._log_at = self._clock() + _LOG_EVERY_S
            reason = str(error).strip()
            if is_ours:
                log_event(logging.ERROR, events.STATEMENT_REFUSED, loop=self._loop, error=reason, **fields)
            else:
                log_event(logging.WARNING, events.DATABASE_LOST, loop=self._loop, error=reason, **fields)
            self._was_lost |= not is_ours
        if not is_ours:
            connections[self._using].errors_occurred = True
            remember_connections()
        return OUTAGE_WAITS.delay(self._failures).total_seconds()

    def over(self) -> None:
        was_lost, self._was_lost, self._failures, self._log_at = self._was_lost, False, 0, float("-inf")
        if was_lost:
            log_event(logging.INFO, events.DATABASE_BACK, loop=self._loop)
            for loop in tuple(_woken_after_outages):
                loop.wake()

    def attempt(self, work: Callable[[], object]) -> bool:
        """Do the work once; return False if the database failed. For the end of a thread, which cannot wait."""
        return self.wait_out(work, lambda _: True)

    def wait_out(self, work: Callable[[], object], give_up: Callable[[float], bool]) -> bool:
        """Do the work, retrying until the database allows it; return False if given up.

        ``give_up`` waits for so many seconds, or less if it returns True (such as ``Event.wait``).
        """
        while True:
            try:
                tidy_connections()
                work()
            except Error as error:
                if give_up(self.lost(error)):
                    return False
            else:
                self.over()
                return True


class Loop:
    """Base of loops that work in rounds until stopped, on their own thread (``start``) or on the caller's (``run``).

    A subclass implements ``poll``. The loop tidies the thread's connections before each round, waits out outages of the
    database, and closes the connections at the end. It is not for threads that wait for something other than time or
    ``wake``: a runner waits for its buffer, a destination's thread for its backlog.
    """

    # Whether to poll at once when any loop of this process reaches the database again.
    wakes_after_outage: ClassVar[bool] = False
    # Whether ``poll`` itself notices another server, so that a connection replaced for its age is no outage.
    knows_server: ClassVar[bool] = False

    def __init__(
        self,
        name: str,
        *,
        using: str,
        first_poll_in_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[threading.Event, float], object] = lambda event, seconds: event.wait(seconds),
    ) -> None:
        """Prepare to work on the database ``using``; ``name`` is for the log and the thread.

        Tests pass ``clock`` and ``wait``.
        """
        self.using = using
        self.outage = Outage(name, using=using, clock=clock)
        self.stopping = threading.Event()
        self.woken = threading.Event()
        self._first_poll_in_s = first_poll_in_s
        self._clock = clock
        self._wait = wait
        self.began_at = self._polled_at = clock()
        # psycopg's connection after the last round, None if there was none or the round failed.
        self._connection: object = None
        self._thread = threading.Thread(
            target=exits_on_error(self.run), name=f"salon-jobs-{name.replace(' ', '-')}", daemon=True
        )

    def poll(self) -> float:
        """Do one round; return the seconds until the next.

        Database errors are waited out; any other ends the loop, and with it the process.
        """
        raise NotImplementedError

    def on_outage(self) -> None:
        """Drop state that a failed round or a lost connection may have made out of date; it may be called for both.

        Called on the loop's thread: after a round that failed, before it waits; and before a round without the last
        one's connection, which the server ended in the meantime (or CONN_MAX_AGE, unless ``knows_server``).
        """

    def finish(self) -> bool:
        """Clean up after the last round; return whether that succeeded. Connections are closed afterwards."""
        return True

    def run(self) -> bool:
        """Poll until stopped, then finish; return whether it ended cleanly."""
        self.began_at = self._polled_at = self._clock()
        try:
            try:
                self._poll_until_stopped()
            finally:
                self.stopping.set()
                clean = self.finish()
            return clean
        finally:
            connections.close_all()

    def start(self) -> None:
        """Run on its own thread; an error that ends the thread ends the process."""
        if self.wakes_after_outage:
            _woken_after_outages.add(self)
        self._thread.start()

    def wake(self) -> None:
        """Poll at once. Thread-safe."""
        self.woken.set()

    def stop(self) -> None:
        """Poll no more; returns at once. Idempotent and thread-safe."""
        self.stopping.set()
        self.woken.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread to end; return whether it has."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs; an unexpected error or ``stop`` ends it."""
        return self._thread.is_alive()

    @property
    def polled_s_ago(self) -> float:
        """Age of the last round that succeeded, in seconds; before the first, of the loop."""
        return self._clock() - self._polled_at

    def _poll_until_stopped(self) -> None:
        wait_s = self._first_poll_in_s
        while True:
            if wait_s > 0 and not self.stopping.is_set():
                self._wait(self.woken, min(wait_s, threading.TIMEOUT_MAX))
            self.woken.clear()
            if self.stopping.is_set():
                return
            try:
                was_old = self.knows_server and is_only_old(connections[self.using])
                tidy_connections()
                if self._connection not in (None, connections[self.using].connection) and not was_old:
                    self.on_outage()
                wait_s = self.poll()
            except Error as error:
                self._connection = None
                self.on_outage()
                # Not for a wake-up, which is no reason to try sooner.
                self._wait(self.stopping, self.outage.lost(error))
                wait_s = 0.0
            else:
                self._polled_at = self._clock()
                self._connection = connections[self.using].connection
                self.outage.over()
