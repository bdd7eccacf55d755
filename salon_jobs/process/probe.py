"""A bounded wait for a database that may never answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial
from typing import Final, Generic, TypeVar

from django.db import connections

from salon_jobs.core.errors import NotReady

T = TypeVar("T")
# How long a late answer about readiness is valid while the next is awaited: longer than two probes are apart.
KEPT_S: Final = 35.0
# Health probes time out after three to five seconds. Answer before that, with the reason.
_PATIENCE_S: Final = 2.0
# The operating system may wait a quarter of an hour for a lost connection; start another probe long before that.
_LOST_AFTER_S: Final = 30.0


class Probe(Generic[T]):
    """Query that runs in its own thread, on a connection that is closed afterwards.

    Concurrent callers share one attempt. A hanging database therefore neither blocks the caller nor costs another
    thread and connection for each probe. An attempt can take longer than its callers wait, as when the first of two
    hosts does not answer and libpq waits for it until ``connect_timeout``: its answer is kept for callers within
    ``kept_s``. An answer in time is not kept: if the next does not come, something has changed. ``afterwards``
    is called in the same thread, on the same connection, once the callers have their answer, unless it still runs.
    """

    def __init__(
        self,
        ask: Callable[[], T],
        *,
        patience_s: float = _PATIENCE_S,
        kept_s: float = 0.0,
        afterwards: Callable[[], None] | None = None,
    ) -> None:
        self._ask = ask
        self._patience_s = patience_s
        self._kept_s = kept_s
        self._afterwards = afterwards
        self._lock, self._after = threading.Lock(), threading.Lock()
        self._asked = self._answered = float("-inf")
        self._attempt: Future[T] | None = None
        self._late: Future[T] | None = None

    def answer(self) -> T:
        """Return the query's result, or raise its error. Raises NotReady without an answer within ``patience_s``."""
        with self._lock:
            now = time.monotonic()
            attempt = self._attempt
            if attempt is None or attempt.done() or now - self._asked > _LOST_AFTER_S:
                self._asked = now
                attempt = self._attempt = Future()
                threading.Thread(target=self._run, args=(attempt,), name="salon-jobs-probe", daemon=True).start()
        wait([attempt], self._patience_s)
        with self._lock:
            if not attempt.done():
                if self._late is None or self.age_s > self._kept_s:
                    silent_s = time.monotonic() - self._asked
                    raise NotReady(f"the database does not answer: asked {silent_s:.0f} s ago")
                attempt = self._late
        return attempt.result()

    @property
    def age_s(self) -> float:
        """Age of the last answer, in seconds; infinite before the first."""
        return time.monotonic() - self._answered

    def _run(self, attempt: Future[T]) -> None:
        asked = time.monotonic()
        try:
            set_answer = partial(attempt.set_result, self._ask())
        except BaseException as error:  # raised again in the caller
            set_answer = partial(attempt.set_exception, error)
        with self._lock:
            self._answered = time.monotonic()
            self._late = attempt if self._answered - asked > self._patience_s else None
            set_answer()
        try:
            # It may hang while the probe does not, as where a table is locked: in one thread, on one connection.
            if self._afterwards is not None and attempt.exception() is None and self._after.acquire(blocking=False):
                try:
                    self._afterwards()
                finally:
                    self._after.release()
        finally:
            connections.close_all()
